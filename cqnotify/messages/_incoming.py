# SPDX-License-Identifier: MIT
"""Messages that have arrived, and the memory into which the program wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union

from . import _wire as wire
from ._memory import own_memory, writable_bytes_of
from ._pinning import SLOW, result_later
from ._wire import Limits, Offer, Piece, Remote

if TYPE_CHECKING:
    from .. import MR, SGE, AccessFlags
    from .._core import _Buffer as AnyBuffer
    from ._memory import Registration
    from ._resources import Parts

_T = TypeVar("_T")
Frame = bytearray | memoryview

LARGEST_READ = 1 << 20  # bytes of one work request


class Incoming(NamedTuple):
    """A message that the program has not taken yet, in the memory of a receive.

    bounds: where its frames are; of an offer, which has the number `number`, nothing is known yet.
    """

    slot: int
    frame: memoryview
    bounds: list[tuple[int, int]]
    offer: Offer | None = None
    number: int = 0


class Place:
    """Where the frames of one message go."""

    def __init__(
        self,
        into: Sequence[AnyBuffer] | None,
        allocate: Callable[[int], AnyBuffer] | None,
    ) -> None:
        self._into, self._allocate = into, allocate
        self.is_given: bool = into is not None or allocate is not None

    def check(self, frames: int) -> None:
        if self._into is not None and len(self._into) != frames:
            raise ValueError(
                f"a message of {frames} frames does not fit into {len(self._into)} buffers"
            )

    def memory(self, index: int, nbytes: int) -> memoryview:
        """The caller's, of that many bytes."""
        if self._into is not None:
            return writable_bytes_of(self._into[index], nbytes)
        assert self._allocate is not None, "see is_given"
        return writable_bytes_of(self._allocate(nbytes), nbytes)

    def copied(self, index: int, source: memoryview) -> Frame:
        """A frame, copied into the caller's memory or into new."""
        if not self.is_given:
            return bytearray(source)
        target = self.memory(index, source.nbytes)
        target[:] = source
        return target


def copy(incoming: Incoming, place: Place) -> list[Frame]:
    """The frames of a message that has come as a whole."""
    place.check(len(incoming.bounds))
    frame = incoming.frame
    return [place.copied(i, frame[a:b]) for i, (a, b) in enumerate(incoming.bounds)]


# What is to be read next, of which the device tells once. None: not until all reads that were begun
# have completed; a future: not until there is memory.
Reads = Sequence["tuple[SGE, Remote]"]
Step = Union["asyncio.Future[Any]", Reads, None]
Steps = Generator[Step, None, list[Frame]]


class Fetch:
    """The memory of a message that is being read, until the device has done with it."""

    def __init__(self, parts: Parts, incoming: Incoming, place: Place, limits: Limits) -> None:
        self._parts, self._incoming, self._place = parts, incoming, place
        self._limits = limits
        self._most = min(parts.device.max_msg_sz, LARGEST_READ)
        # A half of those that can be under way: the device has the other half to go on with while
        # this one is told of.
        self._together = max(1, parts.reads // 2)
        self._own: list[MR] = []
        self._registrations: list[Registration] = []
        self._let_go: Callable[[], None] | None = None  # of what a thread is making

    def steps(self) -> Steps:
        offer = self._incoming.offer
        assert offer is not None, "other messages are copied"
        if offer.body is None:
            body = self._incoming.frame[wire.OFFER_SIZE :]
        else:
            body = yield from self._fetch(offer.body)
            yield None
        pieces = wire.parse_body(body, offer.frames, self._limits)
        self._place.check(len(pieces))
        frames: list[Frame] = []
        for i, piece in enumerate(pieces):
            if piece.remote is None:
                source = body[piece.start : piece.start + piece.length]
                # A body that was read is ours alone, and need not be copied.
                is_own = offer.body is not None and not self._place.is_given
                frames.append(source if is_own else self._place.copied(i, source))
            else:
                frames.append((yield from self._frame(i, piece, piece.remote)))
        yield None
        return frames

    def _frame(self, index: int, piece: Piece, remote: Remote) -> Generator[Step, None, memoryview]:
        if not self._place.is_given:
            return (yield from self._fetch(remote))
        view = self._place.memory(index, piece.length)
        registrations = self._parts.registrations
        if registrations.is_slow(view, self._sink):
            making = registrations.take_slowly(view, self._sink)
            one = yield from self._made(making, registrations.give_back)
        else:
            one = registrations.take(view, self._sink)
        self._registrations.append(one)
        yield from self._reads(one.mr, remote, one.addr - one.mr.addr)
        return view

    def _fetch(self, remote: Remote) -> Generator[Step, None, memoryview]:
        """Into new memory."""
        pd, pinning, sink = self._parts.pd, self._parts.registrations.pinning, self._sink
        if remote.length < SLOW:
            mr = own_memory(pd, remote.length, sink)
        else:
            making = pinning.start(lambda: own_memory(pd, remote.length, sink))
            mr = yield from self._made(making, pinning.close)
        self._own.append(mr)
        yield from self._reads(mr, remote)
        return memoryview(mr)

    def _made(
        self, making: asyncio.Future[_T], give_back: Callable[[_T], None]
    ) -> Generator[Step, None, _T]:
        """What a thread makes."""
        self._let_go = lambda: result_later(making, give_back)
        yield making
        self._let_go = None
        return making.result()

    @property
    def _sink(self) -> AccessFlags:
        return self._parts.device.sink

    def _reads(self, mr: MR, remote: Remote, to: int = 0) -> Generator[Reads, None, None]:
        """Into the memory region, from its byte `to` on."""
        bounds = range(0, remote.length, self._most)
        for i in range(0, len(bounds), self._together):
            yield [self._part(mr, remote, at, to) for at in bounds[i : i + self._together]]

    def _part(self, mr: MR, remote: Remote, at: int, to: int) -> tuple[SGE, Remote]:
        end = min(at + self._most, remote.length)
        return mr[to + at : to + end], Remote(end - at, remote.addr + at, remote.rkey)

    def release(self) -> None:
        """What was read remains in memory; the device reaches it no more."""
        if self._let_go is not None:
            self._let_go()
            self._let_go = None
        for mr in self._own:
            self._parts.registrations.pinning.close(mr)
        self._own.clear()
        for one in self._registrations:
            self._parts.registrations.give_back(one)
        self._registrations.clear()

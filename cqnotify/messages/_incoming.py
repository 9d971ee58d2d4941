# SPDX-License-Identifier: MIT
"""Messages that have arrived, and the memory into which the program wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union

from .._registered import SLOW
from . import _wire as wire
from ._memory import Wanted, own_memory, writable_bytes_of
from ._pinning import release_result
from ._wire import Limits, Offer, Piece, Remote

if TYPE_CHECKING:
    from .. import MR, SGE, AccessFlags
    from .._core import _Buffer as AnyBuffer
    from .._registered import Registration
    from ._resources import Resources

_T = TypeVar("_T")
Frame = bytearray | memoryview

LARGEST_READ = 1 << 20  # bytes of one work request


Message = tuple[int, int, int, int, bool]  # as the core names it


class Incoming(NamedTuple):
    """A message that the program has not received yet, in the memory of a receive.

    bounds: where its frames are, if it is a DATA.
    offer, number: of an OFFER, with its number, from 0.
    """

    frame: memoryview
    bounds: list[tuple[int, int]]
    offer: Offer | None
    number: int

    @classmethod
    def of(cls, message: Message, resources: Resources, limits: Limits) -> Incoming:
        _, number, slot, length, is_offer = message
        frame = resources.received_frame(slot, length)
        if is_offer:
            return cls(frame, [], wire.parse_offer(frame, limits), number)
        return cls(frame, wire.parse_data(frame, limits), None, number)


class Destination:
    """Where the frames of one message go."""

    def __init__(
        self,
        into: Sequence[AnyBuffer] | None,
        allocate: Callable[[int], AnyBuffer] | None,
    ) -> None:
        self.into: Sequence[AnyBuffer] | None = into
        self._allocate = allocate
        self.is_given: bool = into is not None or allocate is not None

    def check(self, frames: int) -> None:
        if self.into is not None and len(self.into) != frames:
            raise ValueError(
                f"a message of {frames} frames does not fit into {len(self.into)} buffers"
            )

    def memory(self, index: int, nbytes: int) -> memoryview:
        """The caller's, of that many bytes."""
        if self.into is not None:
            return writable_bytes_of(self.into[index], nbytes)
        assert self._allocate is not None, "see is_given"
        return writable_bytes_of(self._allocate(nbytes), nbytes)

    def copied(self, index: int, source: memoryview) -> Frame:
        """A frame, copied into the caller's memory or into new."""
        if not self.is_given:
            return bytearray(source)
        target = self.memory(index, source.nbytes)
        target[:] = source
        return target


def copy(incoming: Incoming, destination: Destination) -> list[Frame]:
    """The frames of a message that has come as a whole."""
    destination.check(len(incoming.bounds))
    frame = incoming.frame
    return [destination.copied(i, frame[a:b]) for i, (a, b) in enumerate(incoming.bounds)]


# What Fetch yields: reads to post, which have one completion; None, to be resumed when all reads
# have completed; or a future of memory, to be resumed when it is done.
Reads = list["tuple[SGE, Remote]"]
Step = Union["asyncio.Future[Any]", Reads, None]
Steps = Generator[Step, None, list[Frame]]


def largest_read(resources: Resources) -> int:
    """How many bytes a work request reads."""
    return min(resources.device.max_msg_sz, LARGEST_READ)


def reads_together(resources: Resources) -> int:
    """How many have one completion: a half of those that can be under way, so that the device has
    the other half to go on with while a completion is handled here."""
    return max(1, resources.max_reads // 2)


class Fetch:
    """The memory of a message that is being read, and the pieces in which it is read."""

    def __init__(
        self, resources: Resources, incoming: Incoming, destination: Destination, limits: Limits
    ) -> None:
        self._resources, self._incoming = resources, incoming
        self._destination, self._limits = destination, limits
        self._most = largest_read(resources)
        self._together = reads_together(resources)
        self._own: list[MR] = []
        self._registrations: list[Registration] = []
        self._release_pending: Callable[[], None] | None = None  # of what a thread is making

    def steps(self) -> Steps:
        """Yield what to read: the body of the offer, and then each large frame, in pieces."""
        offer = self._incoming.offer
        assert offer is not None, "other messages are copied"
        if offer.body is None:
            body = self._incoming.frame[wire.OFFER_SIZE :]
        else:
            body = yield from self._fetch(offer.body)
            yield None
        pieces = wire.parse_body(body, offer.frames, self._limits)
        self._destination.check(len(pieces))
        frames: list[Frame] = []
        for i, piece in enumerate(pieces):
            if piece.remote is None:
                source = body[piece.start : piece.start + piece.length]
                # A body that was read is ours alone, and need not be copied.
                is_own = offer.body is not None and not self._destination.is_given
                frames.append(source if is_own else self._destination.copied(i, source))
            else:
                frames.append((yield from self._frame(i, piece, piece.remote)))
        yield None
        return frames

    def _frame(self, index: int, piece: Piece, remote: Remote) -> Generator[Step, None, memoryview]:
        if not self._destination.is_given:
            return (yield from self._fetch(remote))
        view = self._destination.memory(index, piece.length)
        registrations = self._resources.registrations
        if registrations.is_slow(view, self._sink):
            making = registrations.acquire_in_thread(view, self._sink)
            one = yield from self._made(making, registrations.release)
        else:
            one = registrations.acquire(Wanted(view, self._sink))
        self._registrations.append(one)
        yield from self._reads(one.mr, remote, one.addr - one.mr.addr)
        return view

    def _fetch(self, remote: Remote) -> Generator[Step, None, memoryview]:
        """Into new memory."""
        pd, pinning, sink = self._resources.pd, self._resources.registrations.pinning, self._sink
        if remote.length < SLOW:
            mr = own_memory(pd, remote.length, sink)
        else:
            making = pinning.start(lambda: own_memory(pd, remote.length, sink))
            mr = yield from self._made(making, pinning.close)
        self._own.append(mr)
        yield from self._reads(mr, remote)
        return memoryview(mr)

    def _made(
        self, making: asyncio.Future[_T], release: Callable[[_T], None]
    ) -> Generator[Step, None, _T]:
        """Wait for what a thread makes."""
        self._release_pending = lambda: release_result(making, release)
        yield making
        self._release_pending = None
        return making.result()

    @property
    def _sink(self) -> AccessFlags:
        return self._resources.device.sink

    def _reads(self, mr: MR, remote: Remote, to: int = 0) -> Generator[Reads, None, None]:
        """Cut a frame into reads, which go into the memory region, from its byte `to` on."""
        bounds = range(0, remote.length, self._most)
        for i in range(0, len(bounds), self._together):
            yield [self._part(mr, remote, at, to) for at in bounds[i : i + self._together]]

    def _part(self, mr: MR, remote: Remote, at: int, to: int) -> tuple[SGE, Remote]:
        end = min(at + self._most, remote.length)
        return mr[to + at : to + end], Remote(end - at, remote.addr + at, remote.rkey)

    def release(self) -> None:
        """End the registrations: the device uses the memory no more, which keeps what was read."""
        if self._release_pending is not None:
            self._release_pending()
            self._release_pending = None
        for mr in self._own:
            self._resources.registrations.pinning.close(mr)
        self._own.clear()
        for one in self._registrations:
            self._resources.registrations.release(one)
        self._registrations.clear()

# SPDX-License-Identifier: MIT
"""Messages that are offered to the peer, which reads them: see csrc/messages/outbox.c, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import _wire as wire
from ._errors import ProtocolError, fresh
from ._memory import READABLE, Wanted, own_memory
from ._pinning import release_result
from ._wire import OFFER, Hello, Remote

if TYPE_CHECKING:
    from .. import MR, _core
    from .._registered import Registration
    from ._flow import Flow
    from ._queue import SendQueue
    from ._resources import Resources


class Outgoing:
    """A message that the peer reads. It keeps its buffers until the peer has them."""

    def __init__(self, views: Sequence[memoryview], nbytes: int) -> None:
        self.views: Sequence[memoryview] = views
        self.nbytes: int = nbytes
        self._registrations: list[Registration] = []
        self._body: MR | None = None
        self._pinning: asyncio.Future[Registration] | None = None  # in a thread
        self._pinned: list[Registration | None] = []  # of the first views; None: that is quick

    def try_pin(self, resources: Resources, then: Callable[[], None]) -> bool:
        """Return whether offer() is quick: no large buffer is left to register. Otherwise a thread
        registers one, and `then` is called. Raises what has failed in the thread."""
        if self._pinning is not None:
            if not self._pinning.done():
                return False
            done, self._pinning = self._pinning, None
            self._pinned.append(done.result())
        for view in self.views[len(self._pinned) :]:
            if resources.registrations.is_slow(view, READABLE):
                self._pinning = resources.registrations.acquire_in_thread(view, READABLE)
                self._pinning.add_done_callback(lambda _: then())
                return False
            self._pinned.append(None)
        return True

    def offer(
        self, resources: Resources, eager: int
    ) -> tuple[Remote, list[Remote], list[memoryview]]:
        """Grant the peer access to the large frames. Return where the body is, which is not written
        yet if it is to follow the offer; the table of frames; and the small ones."""
        remotes: list[Remote] = []
        small: list[memoryview] = []
        pinned, self._pinned = self._pinned, []
        self._registrations += filter(None, pinned)
        for view, known in zip(self.views, pinned, strict=True):
            if view.nbytes < eager:
                remotes.append(Remote(view.nbytes, 0, 0))
                small.append(view)
                continue
            one = known or resources.registrations.acquire(Wanted(view, READABLE))
            if known is None:
                self._registrations.append(one)
            remotes.append(Remote(view.nbytes, one.addr, one.mr.rkey))
        length = len(remotes) * wire.ENTRY_SIZE + sum(view.nbytes for view in small)
        if wire.OFFER_SIZE + length <= eager:
            return Remote(length, 0, 0), remotes, small
        self._body = own_memory(resources.pd, length, READABLE)
        wire.put_body(memoryview(self._body), 0, remotes, small)
        return Remote(length, self._body.addr, self._body.rkey), remotes, small

    def release(self, resources: Resources) -> None:
        """The peer has it, or never will, and the device does not use it: release its memory."""
        if self._pinning is not None:
            release_result(self._pinning, resources.registrations.release)
            self._pinning = None
        for one in (*self._registrations, *filter(None, self._pinned)):
            resources.registrations.release(one)
        self._registrations.clear()
        self._pinned.clear()
        if self._body is not None:
            resources.registrations.pinning.close(self._body)
            self._body = None
        self.views = ()


class Sender:
    """Offers messages. The core has those that wait, and those that were offered."""

    def __init__(
        self,
        resources: Resources,
        session: _core.MessageSession,
        flow: Flow,
        queue: SendQueue,
        peer: Hello,
        post_pending: Callable[[], None],
    ) -> None:
        self._resources, self._session, self._flow = resources, session, flow
        self._queue, self._peer, self._post_pending = queue, peer, post_pending
        self._eager = min(resources.options.eager, peer.eager)
        self._closing_error: Exception | None = None  # why the peer receives no more

    @property
    def is_idle(self) -> bool:
        return not self._session.sends_waiting and not self._session.sends_offered

    def check_size(self, frames: int, nbytes: int) -> None:
        """Raise ValueError for a message that is larger than the peer accepts."""
        if self._closing_error is not None:
            raise fresh(self._closing_error)
        most_frames, most = self._peer.max_frames, self._peer.max_message
        if frames > most_frames:
            raise ValueError(f"a message of {frames} frames: the peer takes at most {most_frames}")
        if nbytes > most:
            raise ValueError(
                f"a message of {nbytes} bytes: the peer takes at most {most} (max_message "
                "of its ConnectionOptions)"
            )

    def post_offer(self, outgoing: Outgoing) -> bool | Exception:
        """Offer a message: small frames are copied, large ones are read by the peer. Return False
        if it has to wait; or why it cannot be sent."""
        if self._flow.unread_offers >= self._resources.options.offers:
            return False
        try:
            if not outgoing.try_pin(self._resources, self._post_pending):
                return False
            frame = self._queue.reserve_frame(self._eager)
            if frame is None:
                return False
            body, remotes, small = outgoing.offer(self._resources, self._eager)
        except (OSError, MemoryError, BufferError, TypeError, ValueError) as e:
            self._queue.drop_frame()
            return e
        length = wire.OFFER_SIZE
        if body.addr == 0:
            wire.put_body(frame, length, remotes, small)
            length += body.length
        wire.put_header(frame, self._flow.header(OFFER))
        wire.put_offer(frame, len(remotes), body)
        self._queue.shorten(length)
        self._queue.post_frame(solicited=True)
        return True

    def peer_closing(self, error: Exception) -> None:
        """Fail all messages: the peer has sent a CLOSING, and reads nothing any more."""
        if self._closing_error is not None:
            raise ProtocolError("a second CLOSING")
        self._closing_error = error
        self._session.may_not_send = True
        self._session.fail_sends(error)

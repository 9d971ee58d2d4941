# SPDX-License-Identifier: MIT
"""Messages on their way out, in the order in which they were sent."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import _wire as wire
from ._errors import ProtocolError, fresh
from ._memory import READABLE, own_memory
from ._pinning import release_result
from ._wire import DATA, OFFER, Hello, Remote

if TYPE_CHECKING:
    from .. import MR
    from ._flow import Flow
    from ._memory import Registration
    from ._queue import SendQueue
    from ._resources import Resources


class Outgoing:
    """A message. It keeps its buffers until the peer has them."""

    def __init__(self, views: Sequence[memoryview], nbytes: int) -> None:
        self.views: Sequence[memoryview] = views
        self.nbytes: int = nbytes
        self.is_over: bool = False
        self.error: BaseException | None = None
        self.future: asyncio.Future[None] | None = None  # of the task that waits
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
            one = known or resources.registrations.acquire(view, READABLE)
            if known is None:
                self._registrations.append(one)
            remotes.append(Remote(view.nbytes, one.addr, one.mr.rkey))
        length = len(remotes) * wire.ENTRY_SIZE + sum(view.nbytes for view in small)
        if wire.OFFER_SIZE + length <= eager:
            return Remote(length, 0, 0), remotes, small
        self._body = own_memory(resources.pd, length, READABLE)
        wire.put_body(memoryview(self._body), 0, remotes, small)
        return Remote(length, self._body.addr, self._body.rkey), remotes, small

    def finish(self, resources: Resources, error: BaseException | None = None) -> None:
        """It was sent, or never will be, and the device does not use it: release its memory."""
        self.is_over, self.error = True, error
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
        if self.future is not None and not self.future.done():
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class Sender:
    def __init__(
        self,
        resources: Resources,
        flow: Flow,
        queue: SendQueue,
        peer: Hello,
        post_pending: Callable[[], None],
    ) -> None:
        self._resources, self._flow, self._queue = resources, flow, queue
        self._peer, self._post_pending = peer, post_pending
        self._eager = min(resources.options.eager, peer.eager)
        self.waiting: OrderedDict[Outgoing, None] = OrderedDict()  # any of which may be withdrawn
        self._offered: deque[Outgoing] = deque()  # the peer has not read them yet
        self._closing_error: Exception | None = None  # why the peer receives no more

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self._offered

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

    def post(self) -> None:
        """Send as many messages as credits and the send queue allow."""
        while self.waiting and self._flow.credits:
            outgoing = next(iter(self.waiting))
            if wire.data_size(len(outgoing.views), outgoing.nbytes) > self._eager:
                if not self._post_offer(outgoing):
                    return
            elif self._post_data(outgoing.views, outgoing.nbytes):
                del self.waiting[outgoing]
                outgoing.finish(self._resources)
            else:
                return

    def try_post(self, views: Sequence[memoryview], nbytes: int) -> bool:
        """Send a message that is copied, and need not wait. Return False if it is not so."""
        if self.waiting or self._flow.credits < 1:
            return False
        return self._post_data(views, nbytes)

    def _post_data(self, views: Sequence[memoryview], nbytes: int) -> bool:
        """Send a message in a DATA frame. Return False if it is too large, or has to wait."""
        size = wire.data_size(len(views), nbytes)
        frame = self._queue.reserve_frame(size) if size <= self._eager else None
        if frame is None:
            return False
        wire.put_header(frame, self._flow.header(DATA))
        wire.put_data(frame, views)
        self._queue.post_frame(solicited=True)
        return True

    def _post_offer(self, outgoing: Outgoing) -> bool:
        """Offer a message: small frames are copied, large ones are read by the peer. Return False
        if it has to wait."""
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
            del self.waiting[outgoing]
            outgoing.finish(self._resources, e)
            return True
        length = wire.OFFER_SIZE
        if body.addr == 0:
            wire.put_body(frame, length, remotes, small)
            length += body.length
        del self.waiting[outgoing]
        self._offered.append(outgoing)
        wire.put_header(frame, self._flow.header(OFFER))
        wire.put_offer(frame, len(remotes), body)
        self._queue.shorten(length)
        self._queue.post_frame(solicited=True)
        return True

    def offers_read(self, count: int) -> None:
        """The peer has read that many offers."""
        if count > len(self._offered):
            raise ProtocolError("offers were read behind a CLOSING")
        for _ in range(count):
            self._offered.popleft().finish(self._resources)

    def withdraw(self, outgoing: Outgoing) -> None:
        """Drop a message whose task was cancelled or timed out, unless it was offered already."""
        outgoing.future = None
        if outgoing in self.waiting:
            del self.waiting[outgoing]
            outgoing.finish(self._resources)

    def peer_closing(self, error: Exception) -> None:
        """Fail all messages: the peer has sent a CLOSING, and reads nothing any more."""
        if self._closing_error is not None:
            raise ProtocolError("a second CLOSING")
        self._closing_error = error
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Fail all messages, since none of them will be read."""
        for outgoing in (*self._offered, *self.waiting):
            outgoing.finish(self._resources, fresh(error))
        self._offered.clear()
        self.waiting.clear()

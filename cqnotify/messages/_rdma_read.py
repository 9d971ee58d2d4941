# SPDX-License-Identifier: MIT
"""Reading offered messages from the peer's memory, several at a time, in the order of recv().

The core reads those that are simple, see csrc/messages/reading.c, while nothing is read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ._errors import fresh
from ._wire import Remote

if TYPE_CHECKING:
    from ._incoming import Fetch, Frame, Reads, Step
    from ._queue import SendQueue


class _Posted(NamedTuple):
    """Reads of one message that have one completion."""

    reading: MessageRead
    number: int

    def completed(self) -> None:
        self.reading.completed(self.number)


class MessageRead:
    """The reads of one message. They go on while no task waits for the result."""

    def __init__(self, fetch: Fetch, post_pending: Callable[[], None]) -> None:
        self._fetch, self._post_pending = fetch, post_pending
        self._future: asyncio.Future[list[Frame]] = asyncio.get_running_loop().create_future()
        self._has_memory = True
        self._steps = fetch.steps()
        self._awaits_reads = False  # so the next step is taken when they have completed
        self._is_stepping = False
        self._next_reads: Reads | None = None  # which wait for capacity
        self._latest: Reads | None = None
        self.in_flight: int = 0
        self.is_over: bool = False

    def result(self) -> asyncio.Future[list[Frame]]:
        """Return a future of the frames; cancelling it does not cancel the reads."""
        result: asyncio.Future[list[Frame]] = self._future.get_loop().create_future()

        def hand_on(future: asyncio.Future[list[Frame]]) -> None:
            error = future.exception()
            if result.done():
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(future.result())

        self._future.add_done_callback(hand_on)
        return result

    @property
    def is_done(self) -> bool:
        """Whether all was read, or it has failed."""
        return self._future.done()

    def frames(self) -> list[Frame]:
        """Return them, or raise the error, once it is done."""
        return self._future.result()

    @property
    def is_reusable(self) -> bool:
        """Whether another task can have the result: it was read, or is being read."""
        return self._future.exception() is None if self._future.done() else not self.is_over

    def post_next(self, queue: SendQueue, capacity: int) -> bool:
        """Post up to `capacity` reads. Return False if none can be posted now."""
        if self.is_over or self._awaits_reads or not self._has_memory or capacity < 1:
            return False
        try:
            step = self._next_reads or self._next_step()
            while step is None:
                if self.in_flight > 0:
                    self._awaits_reads = True
                    return False
                step = self._next_step()
            if isinstance(step, asyncio.Future):
                self._has_memory = False
                step.add_done_callback(self._on_memory)
                return False
            if len(step) > capacity:
                self._next_reads = step
                return False
            self._next_reads, self._latest = None, step
            self._post(queue, step)
            return True
        except StopIteration as e:
            self._end(e.value, None)
        except BaseException as e:
            if not isinstance(e, Exception):
                self.cancel()
                raise
            self._end(None, e)
        return False

    def _post(self, queue: SendQueue, reads: Reads) -> None:
        self.in_flight += len(reads)  # first: if posting fails, the queue pair's end releases it
        queue.post_reads(reads, _Posted(self, len(reads)))

    def probe_by_read(self, queue: SendQueue) -> None:
        """Read one byte again, into the same memory. It counts as a read of the message, whose
        memory the peer keeps until then."""
        assert self._latest is not None, "a read is under way"
        sge, remote = self._latest[-1]
        at = sge.addr - sge.mr.addr
        self._post(queue, [(sge.mr[at : at + 1], Remote(1, remote.addr, remote.rkey))])

    def _on_memory(self, _: object) -> None:
        self._has_memory = True
        self._post_pending()

    def _next_step(self) -> Step:
        self._is_stepping = True
        try:
            return next(self._steps)
        finally:
            self._is_stepping = False

    def completed(self, number: int) -> None:
        self.in_flight -= number
        self._awaits_reads = self._awaits_reads and self.in_flight > 0
        if self.is_over and not self.in_flight:
            self._fetch.release()

    def _end(self, frames: list[Frame] | None, error: Exception | None) -> None:
        self.cancel()
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(frames or [])

    def cancel(self) -> None:
        """Post no more reads; those under way keep their memory until they have completed."""
        self.is_over = True
        if not self._is_stepping:  # it may be that its own `allocate` has ended the connection
            self._steps.close()
        if not self.in_flight:
            self._fetch.release()

    def fail(self, error: Exception) -> None:
        """The queue pair is closed."""
        self.in_flight = 0
        self.cancel()
        if not self._future.done():
            self._future.set_exception(fresh(error))


class Reader:
    def __init__(self, queue: SendQueue, most: int) -> None:
        """most: how many reads can be under way."""
        self._queue = queue
        self._max_in_flight = most
        self._readings: list[MessageRead] = []
        self._oldest = -1  # work request of the queue, at the last probe()

    @property
    def is_idle(self) -> bool:
        return not self._readings

    @property
    def _in_flight(self) -> int:
        own = sum([reading.in_flight for reading in self._readings])
        return own + self._queue.reads_in_flight

    @property
    def free(self) -> int:
        """How many reads may be begun by other code, which are then under way for this, too."""
        return 0 if self._readings else self._capacity

    @property
    def _capacity(self) -> int:
        """How many reads can be posted."""
        return min(self._max_in_flight - self._in_flight, self._queue.free_slots)

    def add(self, reading: MessageRead) -> None:
        """Its reads are posted by the next post()."""
        self._readings.append(reading)

    def post(self) -> None:
        """Post as many reads as there may be; the messages that were asked for first go first."""
        capacity = self._capacity
        for reading in self._readings:
            while reading.post_next(self._queue, capacity):
                capacity = self._capacity
        self._readings = [one for one in self._readings if not one.is_over or one.in_flight]

    def probe(self) -> bool:
        """Probe the peer's device by a read, unless a read has completed since the last call.
        Return False if no read is under way.

        An empty write behind reads could end the connection: newer Soft-RoCE that is asked for a
        whole read again refuses it (REM_ACCESS_ERR) if the latest write or read was of nothing.
        """
        in_flight = [reading for reading in self._readings if reading.in_flight]
        if in_flight and self._queue.oldest == self._oldest and self._queue.has_free_slot:
            # The peer may forget the memory of a message that was given up while another one reads
            # it; so such a message comes last.
            min(in_flight, key=lambda reading: reading.is_over).probe_by_read(self._queue)
        self._oldest = self._queue.oldest
        return bool(in_flight)

    def fail(self, error: Exception) -> None:
        for reading in self._readings:
            reading.fail(error)
        self._readings.clear()

# SPDX-License-Identifier: MIT
"""Reading offered messages from the peer's memory, several at a time, in the order of recv()."""

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
    """Reads of one message of which the device tells once."""

    reading: Reading
    number: int

    def completed(self) -> None:
        self.reading.completed(self.number)


class Reading:
    """One message. It goes on while no task waits for its result."""

    def __init__(self, fetch: Fetch, go_on: Callable[[], None]) -> None:
        self._fetch, self._go_on = fetch, go_on
        self._future: asyncio.Future[list[Frame]] = asyncio.get_running_loop().create_future()
        self._has_memory = True
        self._steps = fetch.steps()
        self._waits = False  # for the reads under way
        self._runs = False
        self._next: Reads | None = None  # which wait for places
        self._latest: Reads | None = None
        self.under_way: int = 0
        self.is_over: bool = False

    def result(self) -> asyncio.Future[list[Frame]]:
        """A future that gets the frames; to cancel it, or have it time out, ends nothing."""
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
    def may_go_on(self) -> bool:
        """Whether another task can have the result: it was read, or is being read."""
        return self._future.exception() is None if self._future.done() else not self.is_over

    def post_next(self, queue: SendQueue, room: int) -> bool:
        """Post reads, of which there may be `room`. Return False if none is to be posted now."""
        if self.is_over or self._waits or not self._has_memory or room < 1:
            return False
        try:
            step = self._next or self._next_step()
            if isinstance(step, asyncio.Future):
                self._has_memory = False
                step.add_done_callback(self._got_memory)
                return False
            if step is None:
                self._waits = self.under_way > 0
                return not self._waits and self.post_next(queue, room)
            if len(step) > room:
                self._next = step
                return False
            self._next, self._latest = None, step
            self._post(queue, step)
            return True
        except StopIteration as e:
            self._end(e.value, None)
        except BaseException as e:
            if not isinstance(e, Exception):
                self.give_up()
                raise
            self._end(None, e)
        return False

    def _post(self, queue: SendQueue, reads: Reads) -> None:
        self.under_way += len(reads)  # first: if posting fails, the queue pair's end releases it
        queue.post_reads(reads, _Posted(self, len(reads)))

    def read_again(self, queue: SendQueue) -> None:
        """One byte of what is under way, into the same place. The message is not there before that
        has completed: then the peer may forget its memory."""
        assert self._latest is not None, "something is under way"
        sge, remote = self._latest[-1]
        at = sge.addr - sge.mr.addr
        self._post(queue, [(sge.mr[at : at + 1], Remote(1, remote.addr, remote.rkey))])

    def _got_memory(self, _: object) -> None:
        self._has_memory = True
        self._go_on()

    def _next_step(self) -> Step:
        self._runs = True
        try:
            return next(self._steps)
        finally:
            self._runs = False

    def completed(self, number: int) -> None:
        self.under_way -= number
        self._waits = self._waits and self.under_way > 0
        if self.is_over and not self.under_way:
            self._fetch.release()

    def _end(self, frames: list[Frame] | None, error: Exception | None) -> None:
        self.give_up()
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(frames or [])

    def give_up(self) -> None:
        """Post no more; what is under way keeps its memory until it has completed."""
        self.is_over = True
        if not self._runs:  # it may be that its own `allocate` has ended the connection
            self._steps.close()
        if not self.under_way:
            self._fetch.release()

    def fail(self, error: Exception) -> None:
        """The queue pair is closed."""
        self.under_way = 0
        self.give_up()
        if not self._future.done():
            self._future.set_exception(fresh(error))


class Reader:
    def __init__(self, queue: SendQueue, most: int) -> None:
        """most: how many reads can be under way."""
        self._queue = queue
        self._most = most
        self._readings: list[Reading] = []
        self._oldest = -1  # work request of the queue, at the last ask()

    @property
    def is_idle(self) -> bool:
        return not self._readings

    @property
    def _under_way(self) -> int:
        return sum(reading.under_way for reading in self._readings)

    @property
    def _room(self) -> int:
        """How many reads can be posted."""
        return min(self._most - self._under_way, self._queue.places_left)

    def start(self, reading: Reading) -> None:
        self._readings.append(reading)
        self.post()

    def post(self) -> None:
        """Post as many reads as there may be; the messages that were asked for first go first."""
        for reading in self._readings:
            while reading.post_next(self._queue, self._room):
                pass
        self._readings = [one for one in self._readings if not one.is_over or one.under_way]

    def ask(self) -> bool:
        """Ask the peer's device for a sign of life, unless it has given one since the last call.
        Return False if no read is under way.

        An empty write behind reads could end the connection: newer Soft-RoCE that is asked for a
        whole read again refuses it (REM_ACCESS_ERR) if the latest write or read was of nothing.
        """
        under_way = [reading for reading in self._readings if reading.under_way]
        if under_way and self._queue.oldest == self._oldest and self._queue.has_place:
            # Of a message that was given up, the peer may forget the memory while another one reads
            # it; so such a message comes last.
            min(under_way, key=lambda reading: reading.is_over).read_again(self._queue)
        self._oldest = self._queue.oldest
        return bool(under_way)

    def fail(self, error: Exception) -> None:
        for reading in self._readings:
            reading.fail(error)
        self._readings.clear()

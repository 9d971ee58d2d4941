# SPDX-License-Identifier: MIT
"""new_event_loop(): asyncio's loop, which sleeps in a selector that calls callbacks of channels.

That all else works on it, the other tests of coroutines show, which run on it too. Here is what it
does by itself with messages, beside other work, at interrupts and at its end. What it calls, and
what it leaves to the loop: test_event_loop_callbacks.py. The selector alone: test_selector.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from event_loop_support import ROUNDS, Counting, Loop, PingPong, bounded
from support import DEADLINE, Lane, Waiter, in_child, open_fds, signal_when_asleep

from cqnotify.aio import AsyncCQ, new_event_loop
from cqnotify.aio._selector import Selector

# ---- messages that come while tasks are asleep ------------------------------------------------


def test_messages_for_tasks_that_sleep_take_no_turns(
    game: PingPong, loop: Loop, selector: Counting
) -> None:
    bounded(loop, game.run())
    assert selector._called >= game.got
    assert selector.turns <= selector._called // ROUNDS + 30


def test_the_loop_has_a_turn_after_a_bounded_number_of_messages(
    game: PingPong, loop: Loop, selector: Counting
) -> None:
    bounded(loop, game.run())
    assert ROUNDS <= selector.most <= ROUNDS * len(game.lanes)


def test_it_is_what_new_event_loop_returns() -> None:
    with contextlib.closing(new_event_loop()) as loop:
        assert type(loop) is asyncio.SelectorEventLoop
        assert type(loop._selector) is Selector  # type: ignore[attr-defined]


if sys.version_info >= (3, 12):

    def test_asyncio_run_takes_it_and_tasks_may_be_eager(game: PingPong) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_task_factory(asyncio.eager_task_factory)
            await game.run()
            assert loop._selector._called >= game.got  # type: ignore[attr-defined]

        asyncio.run(main(), loop_factory=new_event_loop)


def test_a_runner_takes_it(game: PingPong) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(game.run())
        loop: Any = runner.get_loop()
        assert loop._selector._called >= game.got


def test_a_timeout_for_each_message_takes_few_turns(
    game: PingPong, loop: Loop, selector: Counting
) -> None:
    """Each is later than the one that is there already, for which the loop wakes."""
    sleeping = AsyncCQ.wait

    async def wait(acq: AsyncCQ) -> Any:
        async with asyncio.timeout(DEADLINE):
            return await sleeping(acq)

    async def play(acq: AsyncCQ, other: Lane) -> None:
        for _ in range(game.messages):
            await wait(acq)
            game.got += 1
            other.send()

    game.play = play  # type: ignore[method-assign]
    bounded(loop, game.run())
    assert selector._called >= game.got
    assert selector.turns <= selector._called // ROUNDS + 30


# ---- others, during a flood -------------------------------------------------------------------

# The flood is that of the tasks above: each message is there when its sender goes to sleep, so that
# the loop need never have a turn for them. Delays are counted in messages.


class During:
    """What happens when a message is received, and how many were received until it is noticed."""

    def __init__(self, game: PingPong, at: int, cause: Callable[[], object]) -> None:
        self.game = game
        self.at, self.cause = at, cause
        self.seen: int | None = None
        game.each = self.each

    def each(self) -> None:
        if self.game.got == self.at:
            self.cause()

    def notice(self, *_: object) -> None:
        if self.seen is None:
            self.seen = self.game.got

    @property
    def delay(self) -> int:
        assert self.seen is not None, "it was never noticed"
        return self.seen - self.at


AT = 100  # messages: not near a turn that the loop has in any case


def test_another_descriptor_is_read_at_once(game: PingPong, loop: Loop) -> None:
    r, w = os.pipe()
    during = During(game, AT, lambda: os.write(w, b"x"))

    def read() -> None:
        assert os.read(r, 1) == b"x"
        during.notice()

    loop.add_reader(r, read)
    try:
        bounded(loop, game.run())
    finally:
        loop.remove_reader(r)
        os.close(r)
        os.close(w)
    assert during.delay <= 1


def test_a_descriptor_can_be_written_at_once(game: PingPong, loop: Loop) -> None:
    r, w = os.pipe()

    def write() -> None:
        loop.remove_writer(w)
        during.notice()

    during = During(game, AT, lambda: loop.add_writer(w, write))
    try:
        bounded(loop, game.run())
    finally:
        os.close(r)
        os.close(w)
    assert during.delay <= 1


def test_what_is_called_soon_is_called_at_once(game: PingPong, loop: Loop) -> None:
    during = During(game, AT, lambda: loop.call_soon(during.notice))
    bounded(loop, game.run())
    assert during.delay <= 1


def test_a_timer_that_a_task_sets_is_in_time(game: PingPong, loop: Loop) -> None:
    """It is the first: the deadline of the test is later."""
    during = During(game, AT, lambda: loop.call_later(0, during.notice))
    bounded(loop, game.run())
    assert during.delay <= 1


def test_a_timer_is_in_time_though_messages_come_all_the_time(game: PingPong, loop: Loop) -> None:
    """When a message was received after its time, what follows is the timer's turn."""
    late = 0
    due = float("inf")

    def each() -> None:
        nonlocal due, late
        if game.got == AT:
            due = loop.time() + 0.005
            loop.call_at(due, running.cancel)
        late += loop.time() > due + 0.001

    async def main() -> None:
        await asyncio.wait([running])

    game.messages = 1_000_000
    game.each = each
    running = loop.create_task(game.run())
    bounded(loop, main())
    assert running.cancelled()
    assert late <= 1


def test_another_thread_wakes_the_loop(game: PingPong, loop: Loop) -> None:
    def from_another_thread() -> None:
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(during.notice,))
        thread.start()
        thread.join()

    during = During(game, AT, from_another_thread)
    bounded(loop, game.run())
    assert during.delay <= 1


def test_the_handler_of_a_signal_is_called(game: PingPong, loop: Loop) -> None:
    during = During(game, AT, lambda: signal.raise_signal(signal.SIGUSR1))
    loop.add_signal_handler(signal.SIGUSR1, during.notice)
    bounded(loop, game.run())
    assert during.delay <= 1


def test_stop_stops_at_once(game: PingPong, loop: Loop) -> None:
    during = During(game, AT, loop.stop)
    task = loop.create_task(asyncio.wait_for(game.run(), DEADLINE))
    loop.run_forever()
    assert game.got - during.at <= 1
    loop.run_until_complete(task)


async def child_process() -> None:
    process = await asyncio.create_subprocess_exec("true")
    assert await process.wait() == 0


def test_child_processes_end(game: PingPong, loop: Loop) -> None:
    """Whatever watches them."""

    async def main() -> None:
        await asyncio.gather(game.run(), child_process(), child_process())

    bounded(loop, main())


def test_a_connection_of_tcp_works_beside(game: PingPong, loop: Loop, selector: Counting) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    async def talk() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            where = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*where)
            for i in range(100):
                writer.write(b"%d\n" % i)
                assert await reader.readline() == b"%d\n" % i
            writer.close()
            await writer.wait_closed()

    async def main() -> None:
        await asyncio.gather(talk(), game.run())

    bounded(loop, main())
    assert selector._called > 0


# ---- interrupts -------------------------------------------------------------------------------


def interrupt_when_asleep() -> None:
    signal_when_asleep(signal.SIGINT)


def test_ctrl_c_ends_a_runner_whose_task_waits(lane: Lane) -> None:
    async def main() -> None:
        async with AsyncCQ(lane.cq) as acq:
            with pytest.raises(asyncio.CancelledError):
                await acq.wait()
            raise asyncio.CancelledError

    thread = Waiter(interrupt_when_asleep)
    with asyncio.Runner(loop_factory=new_event_loop) as runner, pytest.raises(KeyboardInterrupt):
        runner.run(main())
    thread.join()


def test_ctrl_c_without_a_runner_is_raised_by_the_loop(lane: Lane, either: Loop) -> None:
    async def main() -> None:
        async with AsyncCQ(lane.cq) as acq:
            await acq.wait()

    task = either.create_task(asyncio.wait_for(main(), DEADLINE))
    thread = Waiter(interrupt_when_asleep)
    with pytest.raises(KeyboardInterrupt):
        either.run_until_complete(task)
    thread.join()
    assert not task.done()
    lane.send()
    either.run_until_complete(task)


# ---- debug mode -------------------------------------------------------------------------------


def test_in_debug_mode_the_loop_calls_all(
    game: PingPong, loop: Loop, selector: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    loop.set_debug(True)
    loop.slow_callback_duration = -1.0
    with caplog.at_level(logging.WARNING, logger="asyncio"):
        bounded(loop, game.run())
    assert selector._called == 0
    slow = [record for record in caplog.messages if "_on_event()" in record]
    assert len(slow) >= game.got


def test_debug_mode_begins_at_once(game: PingPong, loop: Loop, selector: Counting) -> None:
    def set_debug() -> None:
        loop.set_debug(True)
        during.notice()

    during = During(game, AT, set_debug)
    loop.slow_callback_duration = DEADLINE
    bounded(loop, game.run())
    assert 0 < selector._called <= AT + 1
    assert during.delay == 0


# ---- its life ---------------------------------------------------------------------------------


def test_closing_the_loop_closes_the_descriptors(lane: Lane) -> None:
    async def main() -> None:
        async with AsyncCQ(lane.cq) as acq:
            lane.send()
            await acq.wait()

    gc.collect()
    before = open_fds()
    with contextlib.closing(new_event_loop()) as loop:
        bounded(loop, main())
        assert open_fds() > before
    assert open_fds() == before


def test_a_loop_that_is_dropped_open_is_collected() -> None:
    gc.collect()
    before = open_fds()
    with pytest.warns(ResourceWarning):
        new_event_loop()
        gc.collect()
    gc.collect()
    assert open_fds() == before


def test_a_forked_child_has_loops_of_its_own(game: PingPong, loop: Loop) -> None:
    """It forks in the midst of the messages, and the parent goes on."""

    async def wait_a_little() -> str:
        await asyncio.sleep(0.001)
        return "done"

    def child() -> None:
        asyncio._set_running_loop(None)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            assert runner.run(wait_a_little()) == "done"

    during = During(game, AT, lambda: statuses.append(in_child(child)))
    statuses: list[int] = []
    bounded(loop, game.run())
    assert during.seen is None
    assert statuses == [0]

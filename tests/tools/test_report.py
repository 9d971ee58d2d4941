# SPDX-License-Identifier: MIT
"""cqnotify.report(), and the same on a signal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import DEADLINE, Pair, deliver, in_child, waiting

import cqnotify
from cqnotify import CQ, CompletionChannel, Context, _report
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint


def lines(ctx: Context | None = None) -> list[str]:
    """Numbers of QPs left out."""
    return re.sub(r"QP \d+", "QP N", cqnotify.report(ctx)).splitlines()


def test_it_tells_of_all_that_is_open(ctx: Context, pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(b.mr[0:64])
    b.recv_cq.req_notify(solicited_only=True)
    mine = CQ(ctx, 4, name="mine")
    head, sender, receiver, *others = lines(ctx)
    assert head.startswith(f"{ctx.name}: asynchronous events: ")
    assert sender == ("QP N: RC, RTS, peer QP N; outstanding: 0 sends on CQ 1, 0 receives on CQ 2")
    assert receiver == ("QP N: RC, RTS, peer QP N; outstanding: 0 sends on CQ 3, 1 receive on CQ 4")
    assert f"QP {a.qp.qp_num}: RC, RTS, peer QP {b.qp.qp_num};" in cqnotify.report(ctx)
    assert others[0].startswith("CQ 1: not armed, ")
    assert others[3].startswith("CQ 4: armed for solicited completions, ")
    assert others[4].startswith(f"CQ 5 'mine': no channel, {mine.cqe} entries; ")
    assert others[5:] == [
        "the channel of CQ 1, CQ 2: no unread event, 0 threads in get_event()",
        "the channel of CQ 3, CQ 4: no unread event, 0 threads in get_event()",
    ]


def test_it_takes_nothing(pair: Pair) -> None:
    b = pair[1]
    b.recv_cq.req_notify()
    deliver(pair)
    before = b.recv_cq.stats
    text = cqnotify.report(b.ctx)
    assert "the channel of CQ 3, CQ 4: an unread event" in text
    assert b.recv_cq.stats == before
    assert b.channel.get_event(timeout=DEADLINE) is b.recv_cq
    assert len(b.recv_cq.poll()) == 1


def test_completions_that_were_fetched_and_not_polled_are_counted(pair: Pair) -> None:
    b = pair[1]
    deliver(pair, range(3))
    b.recv_cq.arm_if_empty()
    assert "entries, 3 completions fetched and not polled; " in cqnotify.report(b.ctx)


def test_threads_that_wait_are_counted(pair: Pair) -> None:
    b = pair[1]
    b.recv_cq.req_notify()
    with waiting(b.channel.get_event):
        assert lines(b.ctx)[-1] == (
            "the channel of CQ 3, CQ 4: no unread event, 1 thread in get_event()"
        )
        deliver(pair)


def test_tasks_that_wait_are_named(pair: Pair) -> None:
    b = pair[1]

    async def outer(acq: AsyncCQ) -> None:
        await acq.recv(b.qp, b.mr[0:64])

    async def main() -> None:
        async with AsyncCQ(b.recv_cq) as acq:
            tasks = [
                asyncio.create_task(outer(acq), name="receiver"),
                asyncio.create_task(acq.completion(7), name="claim"),
                asyncio.create_task(acq.wait(), name="any"),
            ]
            while acq._awaited < len(tasks):
                await asyncio.sleep(0)
            assert sorted(lines(b.ctx)[-4:]) == [
                "  completion(7), task 'claim'",
                "  recv() on QP N, task 'receiver'",
                "  wait(), task 'any'",
                "the AsyncCQ of CQ 4: 3 requests awaited",
            ]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert lines(b.ctx)[-1] == "the AsyncCQ of CQ 4: 0 requests awaited"

    asyncio.run(main())
    assert "AsyncCQ" not in cqnotify.report(b.ctx)


def of_all(*contexts: Context) -> str:
    """What stands at the end of a report of all contexts, of which other tests may have left some;
    the oldest comes first."""
    return "\n" + "\n".join(map(cqnotify.report, contexts))


def test_without_a_context_it_tells_of_all(ctx: Context) -> None:
    with Context(ctx.name) as second:
        channel = CompletionChannel(second)
        text = f"\n{cqnotify.report()}"
        assert text.endswith(of_all(ctx, second))
        assert "the channel of no CQ" in text
        channel.close()
    assert f"\n{cqnotify.report()}".endswith(of_all(ctx))
    assert cqnotify.report(second) == "a Context that is closed"


def test_contexts_in_the_midst_of_the_list_leave_it(ctx: Context) -> None:
    contexts = [Context(ctx.name) for _ in range(3)]
    channels = [CompletionChannel(contexts[n]) for n in (0, 2, 2)]  # which tell them apart
    contexts[1].close()
    assert f"\n{cqnotify.report()}".endswith(of_all(ctx, contexts[0], contexts[2]))
    contexts[2].close()
    assert f"\n{cqnotify.report()}".endswith(of_all(ctx, contexts[0]))
    contexts[0].close()
    assert f"\n{cqnotify.report()}".endswith(of_all(ctx))
    assert all(channel.closed for channel in channels)


def test_a_forked_child_has_no_context_of_its_parent(ctx: Context) -> None:
    def child() -> None:
        assert cqnotify.report() == "no Context is open"
        assert "fork" in cqnotify.report(ctx) or "closed" in cqnotify.report(ctx)

    assert in_child(child) == 0


def test_of_many_objects_the_first_are_told(ctx: Context) -> None:
    kept = [Endpoint(ctx) for _ in range(20)]
    told = lines(ctx)
    assert len(told) == 1 + 3 * (8 + 1)
    assert f"and {len(kept) - 8} QPs more" in told
    assert "and 32 CQs more" in told
    assert told[-1] == "and 12 channels more"


def test_what_is_closed_meanwhile_is_a_line(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def closes(cq: CQ) -> str:
        pair[1].close()
        return armed(cq)

    armed = _report._armed
    monkeypatch.setattr(_report, "_armed", closes)
    told = lines(pair[0].ctx)
    assert told[3].startswith("CQ 1: not armed")
    assert told[5:7] == ["one of the CQs: this CQ is closed"] * 2
    assert told[-1] == "one of the channels: this CompletionChannel is closed"


# On a signal ---------------------------------------------------------------------------


@pytest.fixture
def usr1() -> Iterator[int]:
    before = signal.getsignal(signal.SIGUSR1)
    yield signal.SIGUSR1
    cqnotify.unregister_report(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


PROGRAM = """
import asyncio
import signal
import sys
import cqnotify
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint, connect

cqnotify.register_report(signal.SIGUSR1)
ctx = cqnotify.Context()
a, b = connect(Endpoint(ctx), Endpoint(ctx))
b.qp.post_recv(b.mr[0:64])
if sys.argv[1] == "thread":
    b.recv_cq.arm_if_empty()
    print("ready", flush=True)
    b.channel.get_event(timeout=%r)
else:
    async def main():
        async with AsyncCQ(b.recv_cq) as acq:
            asyncio.get_running_loop().call_soon(print, "ready")
            asyncio.get_running_loop().call_soon(sys.stdout.flush)
            await asyncio.wait_for(acq.completion(5), %r)
    asyncio.run(main(), debug=False)
"""


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("thread", "the channel of CQ 3, CQ 4: no unread event, 1 thread in get_event()"),
        ("task", "  completion(5), task 'Task-2'"),
    ],
)
@pytest.mark.usefixtures("conversation")
def test_a_program_that_sleeps_reports_and_sleeps_on(way: str, told: str, tmp_path: Path) -> None:
    program = PROGRAM % (DEADLINE, DEADLINE)
    with subprocess.Popen(
        [sys.executable, "-c", program, way],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stderr is not None
        try:
            assert sleeper.stdout.readline() == "ready\n"
            for _ in range(2):  # it sleeps on after the first
                seen: list[str] = []
                while told not in seen:
                    sleeper.send_signal(signal.SIGUSR1)
                    line = sleeper.stderr.readline()
                    assert line, sleeper.poll()
                    seen.append(re.sub(r"'Task-\d+'", "'Task-2'", line.rstrip("\n")))
            assert sleeper.poll() is None
        finally:
            sleeper.kill()


def test_a_report_goes_to_the_file_that_was_named(ctx: Context, usr1: int, tmp_path: Path) -> None:
    with (tmp_path / "report").open("w+b") as file:
        cqnotify.register_report(usr1, file)
        signal.raise_signal(usr1)
        cqnotify.register_report(usr1, file.fileno())  # in the place of the first
        signal.raise_signal(usr1)
    assert (tmp_path / "report").read_text() == f"{cqnotify.report()}\n" * 2


def test_a_file_that_takes_nothing_ends_nothing(ctx: Context, usr1: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    cqnotify.register_report(usr1, writing)
    signal.raise_signal(usr1)
    os.close(writing)
    with pytest.raises(AttributeError):
        cqnotify.register_report(usr1, "no file")  # type: ignore[arg-type]


@pytest.mark.parametrize("chain", [False, True])
def test_the_handler_from_before_is_called_if_that_is_asked_for(
    usr1: int, tmp_path: Path, chain: bool
) -> None:
    calls: list[int] = []

    def handler(number: int, _frame: object) -> None:
        calls.append(number)

    signal.signal(usr1, handler)
    with (tmp_path / "report").open("w+b") as file:
        cqnotify.register_report(usr1, file, chain=chain)
        cqnotify.register_report(usr1, file, chain=chain)  # which does not chain to the first
        signal.raise_signal(usr1)
        assert calls == [usr1] * chain
    assert cqnotify.unregister_report(usr1)
    assert signal.getsignal(usr1) is handler
    assert not cqnotify.unregister_report(usr1)


def test_what_the_signal_does_by_default_is_chained_too(usr1: int, tmp_path: Path) -> None:
    def child() -> None:
        with (tmp_path / "report").open("w+b") as file:
            signal.signal(usr1, signal.SIG_DFL)
            cqnotify.register_report(usr1, file, chain=True)
            signal.raise_signal(usr1)

    assert in_child(child) == -usr1
    assert (tmp_path / "report").read_text() == "no Context is open\n"


def test_a_handler_that_another_has_replaced_stays(usr1: int) -> None:
    cqnotify.register_report(usr1, 2)
    signal.signal(usr1, signal.SIG_IGN)
    assert cqnotify.unregister_report(usr1)
    assert signal.getsignal(usr1) is signal.SIG_IGN


def test_other_threads_can_not_register(usr1: int) -> None:
    errors: list[BaseException] = []

    def register() -> None:
        try:
            cqnotify.register_report(usr1, 2)
        except ValueError as e:
            errors.append(e)

    thread = threading.Thread(target=register)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert not cqnotify.unregister_report(usr1)


def test_a_report_comes_while_the_program_writes_to_the_same_file(
    ctx: Context, usr1: int, pair: Pair
) -> None:
    """The handler runs within a write(), whose lock it must not want."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(writing, "w", buffering=64) as file:
        cqnotify.register_report(usr1, file)

        class Raises:
            def __str__(self) -> str:
                signal.raise_signal(usr1)
                return "text"

        print(Raises(), file=file, flush=True)
    assert os.read(reading, 1 << 16).decode() == f"{cqnotify.report()}\ntext\n"
    os.close(reading)

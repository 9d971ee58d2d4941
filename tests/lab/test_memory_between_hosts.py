# SPDX-License-Identifier: MIT
"""Memory that peers fetch, whose hosts or processes die, stand still, are cut off or come back, in
virtual time: what each end sees, and after how many seconds. docs/memory.md has the seconds.
"""

from __future__ import annotations

import shlex

import pytest
from cm_runs import PEERS, PENDING, PORT, Seen, check_cell, run, seconds_of, table
from lab_runs import PROJECT, built

PAGE = PROJECT / "docs/memory.md"
HEADING = "## When hosts fail\n"

READING = "the peer's host dies while we get from it"
WRITING = "... while we put into it"
READING_SOON = "... while we get, with `timeout=1`"
IDLE = "the peer's host is dead, and we call `get()`"
NEVER_ANSWERED = "the peer's host dies before it has answered the first `get()`"
CLOSING = "the peer's host is dead, and we call `memory.close()`"
REVOKING = "... or `close()` of an exposure that it has opened"
KILLED = "the peer's process is killed while we get from it"
KILLED_IDLE = "... and we call `get()` later"
STOPPED = "the peer's process stands still while we get from it, for 20 s"
CUT_SHORT = "the network is cut while we get, for 1.5 s"
CUT_LONG = "the network is cut while we get, for 22 s"
RESUMED = "... and we call `resume()` when it is back"
RESTARTS = "the peer's host restarts, and we call `get()` with the old descriptor"
AGAIN = "... once more"
RESTARTED = "... with the new one"
LOSS = "20 % of the frames are lost, both ways: gets of one packet"
LOSS_OF_MANY = "1 % of the frames are lost, both ways: gets of 2 MB"

FAULTS = [text for name, text in globals().items() if name.isupper() and isinstance(text, str)]
FAULTS.remove(HEADING)

SLOW = ("--net", "delay=50")  # ms one way
NARROW = ("--net", "delay=50,rate=10")  # Mbit/s: 2 MB take 1.7 s and more
SIZE = 20_000_000
LARGE = f"get={SIZE}"
SEEDS = ("3", "4", "5")

pytestmark = built


def cell(fault: str) -> str:
    (said,) = table(PAGE, HEADING)[fault]
    return said


def end(peer: int, *steps: str, port: int = PORT) -> str:
    program = shlex.quote(str(PEERS / "memory_ends.py"))
    return " ".join(["python", program, f"host{peer}:{port}", *steps])


def exposer(*steps: str, port: int = PORT, until: float = 100) -> str:
    return end(1, f"expose={SIZE}", *steps, f"at={until:g}", port=port)


def check_lost(fault: str, seen: Seen, since: float, outcome: str = "ConnectionLostError") -> None:
    assert seen.outcome == outcome
    check_cell(cell(fault), seen.outcome, seen.at - since)


def done(seen: Seen) -> int:
    return int(seen.more.split()[-1])


def test_the_page_has_these_faults_and_no_others() -> None:
    assert list(table(PAGE, HEADING)) == FAULTS


def test_the_peers_host_dies_during_a_transfer() -> None:
    """What was transferred before is known."""
    for fault, steps, outcome in (
        (READING, (LARGE,), "ConnectionLostError"),
        (WRITING, (f"put={SIZE}",), "ConnectionLostError"),
        (READING_SOON, ("at=7.5", f"{LARGE},1"), "TimeoutError"),
    ):
        one, _ = run(
            *(*NARROW, "--at", "8:kill=2"),
            one=[end(2, "at=3", "fetch=10", "get=1", *steps)],
            two=[exposer()],
            freed=PENDING,
        )
        word = steps[-1].partition("=")[0]
        seen = one.seen(word, 1 if word == "get" else 0)
        check_lost(fault, seen, seen.at - seen.after if "timeout" in fault else 8, outcome)
        assert 0 <= done(seen) < SIZE
        if "timeout" not in fault:
            assert done(seen) > 0
        assert one.seen("free").outcome == "ok"


def test_the_peers_host_is_dead() -> None:
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[
            end(2, "at=3", "fetch=10", "get=100", "at=9", "get=100"),
            end(2, "at=3", "fetch=10", "get=100", "at=9", "close", port=PORT + 1),
            end(2, "expose=100", "at=9", "unexpose", port=PORT + 2),
        ],
        two=[
            exposer(),
            exposer(port=PORT + 1),
            end(1, "at=3", "fetch=10", "get=100", "at=100", port=PORT + 2),
        ],
        freed=PENDING,
    )
    check_lost(IDLE, one.seen("get", 1), 9)
    for fault, word, port in ((CLOSING, "close", PORT + 1), (REVOKING, "unexpose", PORT + 2)):
        seen = one.seen(word, port=port)
        assert seen.outcome == "ok"
        assert cell(fault) == "at once"
        assert seen.after < 0.2


def test_the_peers_host_dies_before_it_has_answered() -> None:
    """Its process stands still, so its device has acknowledged what we have asked."""
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[end(2, "at=3", "fetch=10", "at=5", "get=100")],
        two=[exposer("at=4.9", "stop=100"), "true"],
        freed=PENDING,
    )
    check_lost(NEVER_ANSWERED, one.seen("get"), 8)


def test_the_peers_process_is_killed() -> None:
    one, _ = run(
        *NARROW,
        one=[
            end(2, "at=3", "fetch=10", "get=1", LARGE, "at=15", "get=100"),
        ],
        two=[f"{exposer('at=8', 'die')} || true"],
        freed=PENDING,
    )
    check_lost(KILLED, one.seen("get", 1), 8)
    assert done(one.seen("get", 1)) > 0
    check_lost(KILLED_IDLE, one.seen("get", 2), 15, "RefusedError")


def test_the_peers_process_stands_still() -> None:
    """No CPU of the peer takes part in what was opened."""
    one, _ = run(
        *NARROW,
        one=[end(2, "at=3", "fetch=10", "get=1", "at=6", LARGE)],
        two=[exposer("at=5", "stop=20")],
        freed=PENDING,
    )
    seen = one.seen("get", 1)
    assert (seen.outcome, done(seen)) == ("ok", SIZE)
    assert cell(STOPPED).startswith("nothing")
    assert seen.at < 25, "before the process went on"


def test_a_cut_that_is_healed_before_the_devices_patience_ends() -> None:
    one, _ = run(
        *(*NARROW, "--at", "8:cut=1-2", "--at", "9.5:heal=1-2"),
        one=[end(2, "at=3", "fetch=10", "get=1", LARGE)],
        two=[exposer()],
    )
    seen = one.seen("get", 1)
    assert (seen.outcome, done(seen)) == ("ok", SIZE)
    check_cell(cell(CUT_SHORT), "nothing", seen.after)


def test_a_cut_that_is_longer_than_the_devices_patience() -> None:
    one, _ = run(
        *(*NARROW, "--at", "8:cut=1-2", "--at", "30:heal=1-2"),
        one=[end(2, "at=3", "fetch=10", "get=1", LARGE, "at=31", "resume", "get=100")],
        two=[exposer()],
        freed=PENDING,
    )
    lost, resumed = one.seen("get", 1), one.seen("resume")
    check_lost(CUT_LONG, lost, 8)
    assert resumed.outcome == "ok"
    assert resumed.more == f"from {done(lost)}"
    assert done(lost) > 1 << 20
    check_cell(cell(RESUMED), "made", resumed.after)
    assert one.seen("get", 2).outcome == "ok"


def test_the_peers_host_restarts() -> None:
    one, _ = run(
        *(*SLOW, "--at", "5:kill=2", "--at", "7:restart=2"),
        one=[end(2, "at=3", "fetch=10", "get=100", "at=20", "fetch=10", "old", "get=100",
                 "get=100", "old", "get=100")],
        two=[exposer()],
        freed=PENDING,
    )  # fmt: skip
    assert one.seen("get").outcome == "ok"
    for fault, nth in ((RESTARTS, 1), (AGAIN, 2), (RESTARTED, 3)):
        seen = one.seen("get", nth)
        check_cell(cell(fault), seen.outcome, seen.after)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("fault", "percent", "step"),
    [(LOSS, 20, "gets=60,1000,0.05"), (LOSS_OF_MANY, 1, "gets=3,2000000,0.05")],
)
def test_gets_succeed_though_frames_are_lost(
    fault: str, percent: int, step: str, seed: str
) -> None:
    """Which frames are lost depends on the seed alone."""
    assert cell(fault).startswith("nothing")
    one, _ = run(
        *("--net", f"loss={percent}", "--seed", seed),
        one=[end(2, "at=3", "fetch=100", step)],
        two=[exposer(until=200)],
        freed=PENDING,
    )
    seen = one.seen("gets")
    assert (seen.outcome, seen.more.split()[:1]) == ("ok", ["got"])


def test_seconds_are_seconds() -> None:
    assert seconds_of("`ConnectionLostError`, 3.8 s") == 3.8

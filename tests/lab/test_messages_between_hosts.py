# SPDX-License-Identifier: MIT
"""Messages whose peer dies, is cut off, or comes back, in virtual time: what each end sees, and
after how many seconds. docs/messages.md has the seconds.
"""

from __future__ import annotations

import shlex

import pytest
from cm_runs import PEERS, PENDING, PORT, Seen, check_cell, run, table
from lab_runs import PROJECT, built

PAGE = PROJECT / "docs/messages.md"
HEADING = "## When hosts fail\n"

IDLE = "the peer's host dies while nothing is sent"
IDLE_SENT = "... and then we send a message"
IDLE_ASKED = "... with `keepalive=5`"
SENDING = "the peer's host dies while it reads a large message of ours"
SENDING_ASKED = "... with `keepalive=5`, in `send()`"
READING = "the peer's host dies while we read a large message of its"
CLOSING = "the peer's host is dead, and we call `aclose()`"
CLOSING_SOON = "... `aclose(2)`"
ABORTING = "... `abort()`"
CUT_SHORT = "the network is cut while we send, for 1.5 s"
CUT_LONG = "the network is cut while we send, for 22 s: the sender"
RESTARTS = "the server's host restarts, and we connect again when the connection is lost"
LOSS = "20 % of the frames are lost, both ways: messages of one packet"
LOSS_OF_READS = "10 %, with `keepalive=1`: messages that the receiver reads"
LOSS_OF_ALL_SIZES = "1 % of the frames are lost, both ways: messages of up to 2 MB"

FAULTS = [text for name, text in globals().items() if name.isupper() and isinstance(text, str)]
FAULTS.remove(HEADING)

SLOW = ("--net", "delay=50")  # ms one way
NARROW = ("--net", "delay=50,rate=10")  # Mbit/s: a message of 2 MB takes 1.7 s and more
LARGE = "send=100,2000000,0"
ASKED = ",keepalive:5"
ALL_READ = ",eager:256,keepalive:1"

pytestmark = built


def cell(fault: str) -> str:
    (said,) = table(PAGE, HEADING)[fault]
    return said


def end(peer: int, *steps: str, port: int = PORT) -> str:
    program = shlex.quote(str(PEERS / "messages_ends.py"))
    return " ".join(["python", program, f"host{peer}:{port}", *steps])


def server(peer: int, *steps: str, options: str = "", port: int = PORT) -> str:
    steps = steps or ("drain", "state")
    return end(peer, f"listen={options.lstrip(',')}", "accept=60", *steps, port=port)


def check_lost(fault: str, seen: Seen, since: float) -> None:
    assert seen.outcome == "ConnectionLostError"
    check_cell(cell(fault), seen.outcome, seen.at - since)


def test_the_page_has_these_faults_and_no_others() -> None:
    assert list(table(PAGE, HEADING)) == FAULTS


def test_the_peers_host_dies_while_nothing_is_sent() -> None:
    """What was sent before has asked for no completion; the keepalive asks all the same."""
    asked = PORT + 1
    first = ("send=3,100,0", "recv=1,300")
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[
            end(2, "at=3", "connect=10", *first, "send=1,100,0", "drain", "aclose=10"),
            end(2, "at=3", f"connect=10{ASKED}", "send=3,100,0", "drain", "aclose=10", port=asked),
        ],
        two=[server(1), server(1, port=asked)],
        freed=PENDING,
    )
    assert one.seen("recv").outcome == "TimeoutError"
    assert cell(IDLE) == "never"
    sent = one.seen("send", 1)
    assert sent.outcome == "ok"
    check_lost(IDLE_SENT, one.seen("drain"), sent.at)
    check_lost(IDLE_ASKED, one.seen("drain", port=asked), 8)
    assert one.seen("aclose").outcome == one.seen("aclose", port=asked).outcome == "ok"


def test_the_peers_host_dies_while_it_reads_from_us() -> None:
    for options, fault in (("", SENDING), (ASKED, SENDING_ASKED)):
        one, _ = run(
            *(*NARROW, "--at", "8:kill=2"),
            one=[end(2, "at=3", f"connect=10{options}", LARGE, "state", "aclose=10")],
            two=[server(1)],
            freed=PENDING,
        )
        check_lost(fault, one.seen("send"), 8)
        assert one.seen("aclose").outcome == "ok"


def test_the_peers_host_dies_while_we_read_from_it() -> None:
    one, _ = run(
        *(*NARROW, "--at", "8:kill=2"),
        one=[server(2, "drain", "state", "aclose=10")],
        two=[end(1, "at=3", "connect=10", LARGE)],
        freed=PENDING,
    )
    check_lost(READING, one.seen("drain"), 8)
    assert one.seen("drain").more.split()[-1] != "0"
    assert one.seen("aclose").outcome == "ok"


def test_ending_a_connection_whose_peers_host_is_dead() -> None:
    ends = {PORT: "aclose=10", PORT + 1: "aclose=2", PORT + 2: "abort"}
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[
            end(2, "at=3", "connect=10", "send=3,100,0", "at=9", last, port=port)
            for port, last in ends.items()
        ],
        two=[server(1, port=port) for port in ends],
        freed=PENDING,
    )
    closed, soon, aborted = (
        one.seen(last.partition("=")[0], port=port) for port, last in ends.items()
    )
    check_lost(CLOSING, closed, 9)
    assert soon.outcome == "TimeoutError"
    check_cell(cell(CLOSING_SOON), soon.outcome, soon.after)
    assert aborted.outcome == "ok"
    assert cell(ABORTING) == "at once"
    assert aborted.after < 0.2


def test_a_cut_that_is_healed_before_the_devices_patience_ends() -> None:
    one, two = run(
        *(*SLOW, "--at", "8:cut=1-2", "--at", "9.5:heal=1-2"),
        one=[end(2, "at=3", "connect=10", "send=60,100,0.1", "mixed=18", "aclose=10"),
             server(2, port=PORT + 1)],
        two=[server(1),
             end(1, "at=3", "connect=10", "send=60,100000,0.1", "mixed=18", "aclose=10",
                 port=PORT + 1)],
    )  # fmt: skip
    assert cell(CUT_SHORT).startswith("nothing")
    for sender, receiver, port in ((one, two, PORT), (two, one, PORT + 1)):
        assert sender.seen("mixed", port=port).more == "sent 78"
        assert sender.seen("aclose", port=port).outcome == "ok"
        over = receiver.seen("drain", port=port)
        assert (over.outcome, over.more) == ("PeerClosedError", "sent 0 got 78")
    check_cell(cell(CUT_SHORT), "nothing", float(two.seen("send", port=PORT + 1).more.split()[-1]))


def test_a_cut_that_is_longer_than_the_devices_patience() -> None:
    one, _ = run(
        *(*SLOW, "--at", "8:cut=1-2", "--at", "30:heal=1-2"),
        one=[end(2, "at=3", "connect=10", "send=1000,100,0.1", "aclose=10")],
        two=[server(1, "recv=1000,300", "abort")],
        freed=PENDING,
    )
    check_lost(CUT_LONG, one.seen("send"), 8)
    assert one.seen("aclose").outcome == "ok"


def test_the_servers_host_restarts() -> None:
    one, two = run(
        *(*SLOW, "--at", "5:kill=2", "--at", "7:restart=2"),
        one=[
            end(2, "at=3", "connect=10", "send=1000,100,0.1", "drain", "aclose=10",
                "connect=10", "mixed=18", "aclose=10"),
        ],
        two=[server(1)],
        freed=PENDING,
    )  # fmt: skip
    assert one.seen("send").outcome == "ConnectionLostError"
    check_cell(cell(RESTARTS), "ok", one.seen("connect", 1).after)
    assert one.seen("mixed").more == "sent 18"
    assert two.seen("drain").outcome == "PeerClosedError"
    assert two.seen("drain").more == "sent 0 got 18"


@pytest.mark.parametrize(
    ("fault", "percent", "options", "step", "count"),
    [
        (LOSS, 20, "", "send=60,100,0.05", 60),
        # The receiver asks whether the sender is alive while it reads again what was lost.
        (LOSS_OF_READS, 10, ALL_READ, "send=200,1000,0.01", 200),
        (LOSS_OF_ALL_SIZES, 1, "", "mixed=36", 36),
    ],
)
def test_messages_arrive_though_frames_are_lost(
    fault: str, percent: int, options: str, step: str, count: int
) -> None:
    """In both directions at once. Which frames are lost depends on the seed alone."""
    assert cell(fault).startswith("nothing")
    other = PORT + 1
    connect = f"connect=None{options}"
    one, two = run(
        *("--net", f"loss={percent}", "--seed", "3"),
        one=[
            end(2, "at=3", connect, step, "aclose=60"),
            server(2, options=options, port=other),
        ],
        two=[
            server(1, options=options),
            end(1, "at=3", connect, step, "aclose=60", port=other),
        ],
    )
    for sender, receiver, port in ((one, two, PORT), (two, one, other)):
        sent = sender.seen(step.partition("=")[0], port=port)
        assert (sent.outcome, sent.more.split()[:2]) == ("ok", ["sent", str(count)])
        assert receiver.seen("drain", port=port).outcome == "PeerClosedError"
        assert receiver.seen("drain", port=port).more == f"sent 0 got {count}"

# SPDX-License-Identifier: MIT
"""Connections by rdma_cm whose peer dies, is cut off, or comes back, in virtual time: what each
side sees, and after how many seconds, beside rping under the same fault. docs/errors.md has the
seconds; test_cm_faults_now.py has the main faults in real time.
"""

from __future__ import annotations

import pytest
from cm_runs import MODES, PENDING, Seen, Story, check_cell, ends, rping, run, seconds_of, table
from lab_runs import built

DEAD_BEFORE = "the server's host was dead before; its MAC address is not known"
DEAD_KNOWN = "... its MAC address is known"
DEAD_ASKED = "the server's host dies while its program has our request"
CUT_CONNECTING = "the network is cut while we connect, for 14 s"
LOSS = "20 % of the frames are lost while we connect, both ways"
CLIENT_DIES = "the client's host dies while we accept"
IDLE = "the peer's host dies while the connection is idle"
IDLE_ASKED = "... with `keepalive=5`"
SENDING = "the peer's host dies while we send, awaiting each"
POSTING = "... while we post 10 messages a second and await none, `keepalive=5`"
CUT_SHORT = "the network is cut while we send, for 1.5 s"
CUT_LONG = "the network is cut while we send, for 22 s: the sender"
CUT_LONG_CLOSED = "... the receiver, if the sender has called `close()`"
CUT_LONG_LEFT = "... the receiver, if the sender waits after `disconnect()`"
CUT_LONG_ASKED = "... the receiver, with `keepalive=5`"
SERVER_RESTARTS = "the server's host restarts, and we connect again when a send has failed"
SERVER_FORGOT = "the server's host restarts, and we connect again: the old connection, idle"
SERVER_AGAIN = "... the new connection"
CLIENT_RESTARTS = "the client's host restarts and connects again: the idle server"
CLIENT_RESTARTED = "... the client, at its first attempt"

FAULTS = [text for name, text in globals().items() if name.isupper() and isinstance(text, str)]

HASTY = 7011  # the port of ends with the default timeout
ASKED = "None,keepalive:5"
SLOW = ("--net", "delay=50")  # ms one way: without it rping would ping for ever in no time
PINGS = ("-c", "-v", "-a", "host2")
ANSWERS = ("-s", "-v", "-P", "-a", "0.0.0.0")
WATCHED = 300.0  # seconds, for what never happens

pytestmark = built


def test_the_page_has_these_faults_and_no_others() -> None:
    assert list(table()) == FAULTS


def serve(*, timeout: str = "None", port: int = 7001) -> str:
    steps = ["listen", "request=None", f"accept={timeout}", "wait_closed=300", "state", "close"]
    return ends(1, *steps, port=port)


# ---- connecting -------------------------------------------------------------------------------


def check_attempts(fault: str, story: Story, began: float, outcome: str, step: str) -> None:
    """By those that wait as long as the kernel tries, those with the default timeout, and rping."""
    patient, hasty, beside = table()[fault]
    seen = story.seen(step, -1)
    assert seen.outcome == outcome
    check_cell(patient, outcome, seen.after)
    seen = story.seen(step, -1, HASTY)
    check_cell(hasty, seen.outcome, seen.after)
    assert story.rpings[0].ended
    check_cell(beside, story.rpings[0].event, story.rpings[0].at - began)


def attempts(second: int, *first: str) -> list[str]:
    """Of both patiences, from that second on."""
    return [
        ends(2, *first, f"at={second}", f"connect={timeout}", "state", "close", port=port)
        for timeout, port in (("None", 7001), ("10", HASTY))
    ]


def test_the_servers_host_is_dead_and_nobody_knows_its_address() -> None:
    one, _ = run(
        *("--at", "3:kill=2"),
        one=[*attempts(4), rping(4, WATCHED, *PINGS)],
        two=[ends(1, "listen", "request=None")],
    )
    check_attempts(DEAD_BEFORE, one, 4, "UnreachableError:ADDR_ERROR", "connect")


def test_the_servers_host_is_dead_and_its_address_is_known() -> None:
    one, _ = run(
        *("--at", "5:kill=2"),
        one=[*attempts(6, "at=3", "connect=None", "close"), rping(6, WATCHED, *PINGS)],
        two=[serve(), serve(port=HASTY)],
    )
    check_attempts(DEAD_KNOWN, one, 6, "UnreachableError:UNREACHABLE", "connect")


def test_the_servers_host_dies_while_its_program_has_the_request() -> None:
    """The client of rping asks a server of ours, which does not answer either."""
    other = 7021
    silent = ["listen", "request=None", "at=1000"]
    one, two = run(
        *("--at", "6:kill=2"),
        one=[*attempts(4), rping(4, WATCHED, *PINGS, "-p", str(other))],
        two=[ends(1, *silent, port=port) for port in (7001, HASTY, other)],
    )
    for port in (7001, HASTY, other):
        modes = MODES if port != other else MODES[:1]
        assert all(two.all(mode, "request", port)[0].outcome == "ok" for mode in modes)
    check_attempts(DEAD_ASKED, one, 4, "UnreachableError:UNREACHABLE", "connect")


def test_a_cut_that_is_healed_while_we_connect() -> None:
    one, _ = run(
        *(*SLOW, "--at", "5:cut=1-2", "--at", "20:heal=1-2"),
        one=[*attempts(6, "at=3", "connect=None", "close"), rping(6, 100, *PINGS, "-C", "1")],
        two=[
            *(ends(1, "listen", *2 * ("request=60", "accept=60", "close")) for _ in "1"),
            ends(1, "listen", "request=60", "accept=60", "close", "at=40", port=HASTY),
            rping(1, 100, *ANSWERS),
        ],
    )
    check_attempts(CUT_CONNECTING, one, 6, "ok", "connect")
    assert one.seen("connect", 1, HASTY).outcome == "TimeoutError"
    assert one.rpings[0].pings == 1


def test_frames_are_lost_while_we_connect() -> None:
    """Of ten connections, all are made; none is slower than the page says. Which frames are lost
    depends on when each program sends them."""
    times = range(10, 1010, 100)
    client = [step for second in times for step in (f"at={second}", "connect=None", "close")]
    server = len(times) * ["request=200", "accept=None", "close"]
    one, _ = run(
        *("--net", "loss=20", "--seed", "3"),
        one=[ends(2, *client), *(rping(at, 1010, *PINGS, "-C", "1") for at in times)],
        two=[ends(1, "listen", *server), rping(1, 1020, *ANSWERS)],
    )
    tries = [told for mode in MODES for told in one.all(mode, "connect")]
    assert len(tries) == 2 * len(times)
    assert {told.outcome for told in tries} == {"ok"}
    patient, _, beside = table()[LOSS]
    assert max(told.after for told in tries) <= seconds_of(patient)
    assert {rping.pings for rping in one.rpings} == {1}
    slowest = max(rping.at - at for rping, at in zip(one.rpings, times, strict=True))
    assert slowest <= seconds_of(beside)


# ---- accepting --------------------------------------------------------------------------------


def test_the_clients_host_dies_while_we_accept() -> None:
    """When it has got the answer, half a second late, and before we have its own."""
    accept = [
        ends(2, "listen", "request=None", f"accept={timeout}", "close", port=port)
        for timeout, port in (("None", 7001), ("10", HASTY))
    ]
    one, _ = run(
        *("--net", "delay=500", "--at", "4.8:kill=2"),
        one=[*accept, rping(1, WATCHED, "-s", "-v", "-a", "0.0.0.0")],
        two=[
            *(ends(1, "at=3", "connect=None", port=port) for port in (7001, HASTY)),
            rping(3, WATCHED, "-c", "-a", "host1"),
        ],
    )
    check_attempts(CLIENT_DIES, one, 4.5, "RequestExpiredError", "accept")


def test_the_server_goes_before_it_has_our_last_word() -> None:
    """Its kernel rejects what is established here. Our word is on its way from 4.5 to 5."""
    one, two = run(
        *("--net", "delay=500"),
        one=[ends(2, "listen", "request=None", "accept=0.7", "close")],
        two=[ends(1, "at=3", "connect=None", "wait_closed=60", "state", "close")],
    )
    assert one.seen("accept").outcome == "TimeoutError"
    assert two.seen("connect").outcome == "ok"
    assert two.seen("wait_closed").outcome.startswith("RejectedError")
    assert two.seen("wait_closed").at < 6
    assert two.seen("state").outcome == "ERR"


# ---- connected --------------------------------------------------------------------------------


def check_ended(cell: str, seen: Seen, since: float) -> None:
    check_cell(cell, seen.outcome, seen.at - since)


def test_the_peers_host_dies_while_the_connection_is_idle() -> None:
    """rping's server is idle because its client is stopped."""
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[serve(), serve(timeout=ASKED, port=HASTY), rping(1, WATCHED, *ANSWERS)],
        two=[
            *(ends(1, "at=3", "connect=None", "at=1000", port=port) for port in (7001, HASTY)),
            rping(3, WATCHED, "-c", "-a", "host1", stop=4),
        ],
    )
    assert one.seen("wait_closed").outcome == "TimeoutError"
    assert one.seen("state").more.startswith("None")
    asked = one.seen("wait_closed", port=HASTY)
    assert asked.outcome == "UnreachableError"
    assert one.seen("state", port=HASTY).outcome == "ERR"
    assert not one.rpings[0].ended
    assert table()[IDLE] == ["never", "", "never"]
    check_ended(table()[IDLE_ASKED][0], asked, 8)


def test_the_peers_host_dies_while_we_send() -> None:
    """rping asks for seven retries, which on rxe never end."""
    flood = ("flood=400,0.1", "wait_closed=60", "close")
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[
            ends(2, "at=3", "connect=None", "send=10000,0.1", "state", "close"),
            ends(2, "at=3", f"connect={ASKED}", *flood, port=HASTY),
            rping(3, WATCHED, *PINGS),
        ],
        two=[serve(), serve(port=HASTY), rping(1, WATCHED, *ANSWERS)],
    )
    seen = one.seen("send")
    assert seen.outcome == "CompletionError:RETRY_EXC_ERR"
    check_ended(table()[SENDING][0], seen, 8)
    assert one.seen("state").outcome == "ERR"
    assert not one.rpings[0].ended
    assert table()[SENDING][2] == "never"
    # Each message that is posted makes the device wait anew, until there is no room for another.
    full, known = (one.seen(step, port=HASTY) for step in ("flood", "wait_closed"))
    assert full.outcome == "VerbsError"
    assert full.at - 8 > 5
    assert known.outcome == "UnreachableError"
    check_ended(table()[POSTING][0], known, 8)


def test_closing_while_sends_are_tried_for_ever() -> None:
    """Of a host that has died just now, and of one whose address nobody knows any more."""
    sending = ("at=3", "connect=None,retry_count:7", "at=7.9", "flood=10,0.1")
    one, _ = run(
        *(*SLOW, "--at", "8:kill=2"),
        one=[
            ends(2, *sending, "state", "close"),
            ends(2, *sending, "at=200", "state", "close", port=HASTY),
        ],
        two=[serve(), serve(port=HASTY)],
        freed=PENDING,
    )
    for port in (7001, HASTY):
        assert one.seen("state", port=port).outcome == "RTS"
        assert one.seen("close", port=port).outcome == "ok"


def test_a_cut_that_is_healed_before_the_senders_patience_ends() -> None:
    one, two = run(
        *(*SLOW, "--at", "8:cut=1-2", "--at", "9.5:heal=1-2"),
        one=[ends(2, "at=3", "connect=None", "send=60,0.1", "close"), rping(3, 20, *PINGS)],
        two=[serve(), rping(1, 30, *ANSWERS)],
    )
    sent = one.seen("send")
    assert sent.outcome == "ok"
    assert two.seen("wait_closed").outcome == "DisconnectedError:DISCONNECTED"
    assert two.seen("state").more.endswith("got 60")
    assert one.rpings[0].pings > 30
    check_cell(table()[CUT_SHORT][0], "nothing", float(sent.more.split()[-1]))


def test_a_cut_that_is_longer_than_the_senders_patience() -> None:
    """A sender that closes does not insist that its peer hears of it; one that disconnects does."""
    other = 7021
    one, two = run(
        *(*SLOW, "--at", "8:cut=1-2", "--at", "30:heal=1-2"),
        one=[
            *(ends(2, "at=3", "connect=None", "send=1000,0.1", "close", port=port)
              for port in (7001, HASTY)),
            ends(2, "at=3", "connect=None", "send=1000,0.1", "disconnect", "wait_closed=None",
                 "close", port=other),
            rping(3, 60, *PINGS),
        ],
        two=[
            serve(), serve(timeout=ASKED, port=HASTY), serve(port=other), rping(1, 70, *ANSWERS),
        ],
    )  # fmt: skip
    check_ended(table()[CUT_LONG][0], one.seen("send"), 8)
    assert not one.rpings[0].ended
    assert one.rpings[0].pings > 40
    assert two.seen("wait_closed").outcome == "TimeoutError"
    assert table()[CUT_LONG_CLOSED][0] == "never"
    left = two.seen("wait_closed", port=other)
    assert left.outcome == "DisconnectedError:DISCONNECTED"
    check_ended(table()[CUT_LONG_LEFT][0], left, 8)
    check_ended(table()[CUT_LONG_ASKED][0], two.seen("wait_closed", port=HASTY), 8)


# ---- hosts that come back ---------------------------------------------------------------------


RESTART = ("--at", "5:kill=2", "--at", "7:restart=2")


def lives(first: str, second: str) -> str:
    """What a host runs until it is killed, and what when it is back."""
    return f"if [ $(date +%s) -lt 1800000006 ]; then {first}; else {second}; fi"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> tuple[str]:
    """One at a time: so the QP has the same number in both lives of its host."""
    return (str(request.param),)


def test_the_servers_host_restarts_while_we_send(mode: tuple[str]) -> None:
    again = ("connect=None", "send=3,0.1", "close")
    accept = ("request=60", "accept=None", "wait_closed=60", "close")
    one, two = run(
        *(*SLOW, *RESTART),
        one=[ends(2, "at=3", "connect=None", "send=1000,0.1", "close", *again, modes=mode)],
        two=[ends(1, "listen", *accept, modes=mode)],
    )
    assert one.seen("send").outcome == "CompletionError:RETRY_EXC_ERR"
    check_cell(table()[SERVER_RESTARTS][0], "ok", one.seen("connect", 1).after)
    assert one.seen("send", 1).more.startswith("sent 3")
    assert two.seen("wait_closed").outcome == "DisconnectedError:DISCONNECTED"


def test_the_servers_host_restarts_and_a_connection_is_idle(mode: tuple[str]) -> None:
    """The server's first QP has the number of the one to which we are connected, for all that our
    kernel knows: that rejects the answer, ends the old connection, and asks again later."""
    accept = ("request=60", "accept=None", "wait_closed=60", "close")
    one, two = run(
        *(*SLOW, *RESTART),
        one=[
            ends(2, "at=3", "connect=None", "wait_closed=60", "state", "close", modes=mode),
            ends(2, "at=9", "connect=None", "send=3,0.1", "close", modes=mode),
        ],
        two=[ends(1, "listen", *2 * accept, modes=mode)],
    )
    seen = one.seen("wait_closed")
    assert seen.outcome == "DisconnectedError:DISCONNECTED"
    check_ended(table()[SERVER_FORGOT][0], seen, 9)
    accepted = [told.outcome for told in two.all(mode[0], "accept")]
    assert accepted == ["ok", "RequestExpiredError", "ok"]
    check_cell(table()[SERVER_AGAIN][0], "ok", one.seen("connect", 1).after)
    assert one.seen("send").more.startswith("sent 3")


def test_the_clients_host_restarts(mode: tuple[str]) -> None:
    """Its QP has a number that is connected, for all that the server's kernel knows: that rejects
    it, and asks the old connection's peer, which has forgotten it. So both know."""
    first = ends(1, "at=3", "connect=None", "at=1000", modes=mode)
    second = ends(1, "connect=None", "at=9", "connect=None", "send=3,0.1", "close", modes=mode)
    wait = ("request=60", "accept=60", "wait_closed=100", "state", "close")
    one, two = run(
        *(*SLOW, *RESTART),
        one=[
            ends(2, "listen", *wait, *wait, modes=mode),
            rping(1, 60, "-s", "-v", "-a", "0.0.0.0"),
        ],
        two=[
            lives(first, second),
            lives(rping(3.5, 60, "-c", "-a", "host1", stop=4), rping(7.5, 60, "-c", "-a", "host1")),
        ],
    )
    seen = one.seen("wait_closed")
    assert seen.outcome == "DisconnectedError:DISCONNECTED"
    assert one.seen("state").outcome == "ERR"
    check_ended(table()[CLIENT_RESTARTS][0], seen, 7)
    refused = two.seen("connect", 1)
    assert refused.outcome == "RejectedError:STALE_CONN"
    check_ended(table()[CLIENT_RESTARTED][0], refused, 7)
    assert [rping.ended for rping in one.rpings + two.rpings] == [True, True]
    assert two.rpings[0].event == "REJECTED"
    assert two.seen("connect", 2).outcome == "ok"
    assert one.seen("wait_closed", 1).outcome == "DisconnectedError:DISCONNECTED"

# SPDX-License-Identifier: MIT
"""What programs see when a host dies, stands still or cannot be reached, and when frames are lost.

On each host is one of the programs in peers/: blocking.py waits in threads, tasks.py in asyncio.
They have a connection of each kind between them: RC, RC into a shared receive queue, UD.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_runs import built, until

from cqnotify.hosts import Host, Hosts, Program

PEERS = Path(__file__).with_name("peers")
RECEIVES = 32  # that each lane has posted
SENDS = 16  # that it has under way at most
LANES = ("rc", "srq", "ud")
WRONG = ("garbled", "twice", "out_of_order", "skipped")
RELIABLE = ("rc", "srq")
SLACK = 60.0  # seconds, of a busy machine
SHORT = 30.0  # seconds that closing takes only if it waits for the peer
# The same where packets wait on the way out, for a neighbour's answer: rxe's QP waits for them, and
# the kernel for the neighbour, up to 3 s.
PARKED = SHORT + 3

# ack timeout as a code, retry_cnt
IMPATIENT = (14, 1)
PATIENT = (17, 6)
FOR_EVER = (14, 7)  # on rxe


def patience(settings: tuple[int, int]) -> float:
    """Seconds until a send fails that nobody answers, on Linux 6.1; later ones take longer."""
    ack_timeout, retry_cnt = settings
    return 4.096e-6 * 2**ack_timeout * (retry_cnt + 1)


pytestmark = built


@pytest.fixture(params=["blocking", "tasks"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class LanesOnHost:
    """A program on a host, and its lanes."""

    def __init__(self, host: Host, mode: str, settings: tuple[int, int], lanes: tuple[str, ...]):
        self.host, self.lanes = host, lanes
        self.program: Program = host.start(
            "python", "-W", "error", PEERS / f"{mode}.py", *settings, *lanes
        )

    def addresses(self) -> dict[str, str]:
        found = self.program.expect(r"^addresses (.*)$")[1].split()
        return dict(word.split("=") for word in found)

    def order(self, *words: object) -> None:
        self.program.write(" ".join(map(str, words)) + "\n")

    def connect(self, peers: dict[str, str]) -> None:
        for name, address in peers.items():
            self.order("connect", name, address)
        for _ in peers:
            self.program.expect(r"^\w+ connected in .*$")

    def send(self, count: int, every: float = 0) -> None:
        self.order("send", count, every)

    def send_until_stopped(self) -> None:
        self.send(100_000, 0.02)

    def stop(self) -> None:
        """When nobody answers any more, however late that began."""
        self.await_silence()
        self.order("stop")

    def await_silence(self) -> None:
        """Over each connection as many messages are under way as can be, or one has failed."""

        def silent() -> bool:
            tally = self.tally()
            return all(
                tally[lane]["under_way"] == SENDS or tally[lane]["failed"] for lane in RELIABLE
            )

        until(silent, "nobody answers")

    def await_done(self, timeout: float = 60) -> None:
        """Until all that was to be sent has completed; of the time until the next ones succeed, at
        most so many seconds."""
        while self.program.expect(r"^(done|\w+ sent \d+)$", timeout)[1] != "done":
            pass

    def await_done_with_rxe(self) -> None:
        """The same where frames are lost. On Linux 7.2, in one of some 50 runs that lose many, rxe
        forgets its timer when the acknowledgement of the last message was lost: nothing is sent
        again, no completion comes, until another message is posted on that QP."""
        for _ in range(5):
            try:
                return self.await_done(timeout=10)
            except TimeoutError:
                self.order("nudge")
        self.await_done()

    def await_got(self, count: int) -> None:
        """Until the receiver has so many, of each kind about as many."""
        self.program.expect(rf"^rc got {count}$")

    def tally(self) -> dict[str, dict[str, Any]]:
        self.order("tally")
        books = [self.program.expect(r"^tally (\w+) (.*)$") for _ in self.lanes]
        return {book[1]: json.loads(book[2]) for book in books}

    def cpu_share(self) -> float:
        """Of one CPU, since the last time."""
        self.order("cpu")
        cpu, wall = self.program.expect(r"^cpu (\S+) in (\S+)$").groups()
        return float(cpu) / float(wall)

    def sleeps(self) -> bool:
        """Takes little CPU time for half a second, at least once; one that polls takes all."""
        for _ in range(5):
            self.cpu_share()
            time.sleep(0.5)
            if self.cpu_share() < 0.3:
                return True
        return False

    def end(self, limit: float = SHORT) -> None:
        """Close everything, whatever is under way, and leave."""
        self.order("close")
        assert float(self.program.expect(r"^closed in (\S+)$")[1]) < limit
        self.program.close_input()
        assert self.program.wait() == 0, self.program.err
        assert self.program.err == ""
        assert "a task ended with" not in self.program.out

    def first_failure(self, lane: str) -> float:
        """Seconds from the post of the first request that failed until it did."""
        match = re.search(rf"^{lane} send .* after (\S+)$", self.program.out, re.MULTILINE)
        assert match, "no send has failed"
        return float(match[1])


def connected(
    a: Host,
    b: Host,
    mode: str,
    settings: tuple[int, int] = IMPATIENT,
    lanes: tuple[str, ...] = LANES,
) -> tuple[LanesOnHost, LanesOnHost]:
    ends = LanesOnHost(a, mode, settings, lanes), LanesOnHost(b, mode, settings, lanes)
    addresses = [end.addresses() for end in ends]
    for end, peers in zip(ends, reversed(addresses), strict=True):
        end.connect(peers)
    return ends


def sending(
    hosts: Hosts, mode: str, settings: tuple[int, int] = IMPATIENT
) -> tuple[LanesOnHost, LanesOnHost]:
    """As connected(); the first sends until it is stopped, and some of it has arrived."""
    x, y = connected(*hosts, mode, settings)
    x.send_until_stopped()
    y.await_got(10)
    return x, y


def check_failed(end: LanesOnHost, settings: tuple[int, int]) -> None:
    """Each request has completed once; those before the first that failed succeeded, no other one
    did, and that failed when our patience was over. The receives may be flushed after the sends."""
    until(lambda: end.tally()["rc"]["flushed"] == RECEIVES, "the receives were flushed")
    tally = end.tally()
    for lane in RELIABLE:
        books = tally[lane]
        first, *others = sorted((int(number), status) for number, status in books["failed"].items())
        assert first == (books["succeeded"], "RETRY_EXC_ERR")
        assert {status for _, status in others} <= {"WR_FLUSH_ERR"}
        assert books["state"] == "QPState.ERR"
        check_completed(books)
        # On 6.1 the first of the timeouts may have begun long before the post; on newer kernels
        # patience begins anew with each post.
        ack_timeout, retry_cnt = settings
        least = patience((ack_timeout, retry_cnt - 1))
        assert 0.9 * least < end.first_failure(lane) < 2 * patience(settings) + SLACK
    check_succeeded(tally["ud"])
    assert tally["srq"]["flushed"] == 0  # they are for other QPs, too


def check_completed(books: dict[str, Any]) -> None:
    assert books["succeeded"] + len(books["failed"]) == books["posted"]
    assert books["under_way"] == books["completed_twice"] == 0


def check_succeeded(books: dict[str, Any]) -> None:
    check_completed(books)
    assert books["failed"] == {}
    assert books["state"] == "QPState.RTS"


def check_all_succeeded(end: LanesOnHost) -> None:
    for books in end.tally().values():
        check_succeeded(books)


def check_arrived(sender: LanesOnHost, receiver: LanesOnHost, *, all_of_them: bool = True) -> None:
    """Over a connection: in order, once, and as it was sent. A send can complete before the
    receiver's program has looked."""
    sent = sender.tally()
    received: dict[str, dict[str, Any]] = {}

    def all_came() -> bool:
        received.update(receiver.tally())
        if not received["ud"]["got"]:
            return False  # nothing says when a datagram comes, but of these some do
        return all(received[lane]["got"] >= sent[lane]["succeeded"] for lane in RELIABLE)

    until(all_came, "what was acknowledged has arrived, and a datagram")
    for lane in RELIABLE:
        books = received[lane]
        assert [books.get(name, 0) for name in WRONG] == [0] * len(WRONG)
        assert sent[lane]["succeeded"] <= books["got"] <= sent[lane]["posted"]
        if all_of_them:
            assert books["got"] == sent[lane]["posted"]
    assert received["ud"].get("garbled", 0) == 0
    assert received["ud"]["got"] <= sent["ud"]["posted"]


def all_failed(end: LanesOnHost) -> bool:
    tally = end.tally()
    return all(tally[lane]["state"] == "QPState.ERR" for lane in RELIABLE)


def check_that_it_works(a: Host, b: Host, mode: str) -> None:
    x, y = connected(a, b, mode, PATIENT)
    x.send(20)
    x.await_done()
    check_all_succeeded(x)
    check_arrived(x, y)
    x.end()
    y.end()


def test_the_peers_host_dies_while_we_send(hosts: Hosts, mode: str) -> None:
    a, b = hosts
    x, _ = sending(hosts, mode)
    b.kill()
    x.stop()
    x.await_done()
    check_failed(x, IMPATIENT)
    x.end()
    b.restart()
    check_that_it_works(a, b, mode)


def test_the_peers_host_dies_while_we_receive(hosts: Hosts, mode: str) -> None:
    """A receiver learns nothing, sleeps, and learns it when it sends."""
    a, b = hosts
    x, y = connected(a, b, mode)
    y.send_until_stopped()
    x.await_got(10)
    b.kill()
    assert any(x.sleeps() for _ in range(3))  # a stall of the machine can look like work
    for books in x.tally().values():
        assert books["state"] == "QPState.RTS"
        assert books["flushed"] == 0
    x.send(1)
    x.await_done()
    check_failed(x, IMPATIENT)
    x.end()


@pytest.mark.parametrize("known", [True, False], ids=["neighbour known", "neighbour forgotten"])
def test_the_peers_host_dies_and_everything_is_closed(hosts: Hosts, mode: str, known: bool) -> None:
    """While requests are under way that would be tried for ever. Some time after a host has died
    its neighbours do not know its address any more, so that packets wait for it."""
    a, b = hosts
    x, y = connected(a, b, mode, FOR_EVER)
    x.send(1000, 0.01)
    y.await_got(10)
    b.kill()
    if not known:
        a.run("ip", "neigh", "flush", "dev", "v0", check=True)
    time.sleep(1)
    x.await_silence()
    assert not any(x.tally()[lane]["failed"] for lane in RELIABLE)
    x.end(SHORT if known else PARKED)


# How silence begins, and how it ends.
SILENCES: dict[str, tuple[Callable[[Hosts], None], Callable[[Hosts], None]]] = {
    "the peer's host pauses": (lambda hosts: hosts[1].pause(), lambda hosts: hosts[1].resume()),
    "a cut": (lambda hosts: hosts.cut(), lambda hosts: hosts.heal()),
}


@pytest.mark.parametrize("silence", SILENCES)
def test_silence_shorter_than_the_patience(hosts: Hosts, mode: str, silence: str) -> None:
    begin, end = SILENCES[silence]
    x, y = sending(hosts, mode, PATIENT)
    begin(hosts)
    x.stop()
    time.sleep(1.5)
    end(hosts)
    x.await_done()
    assert silence != "a cut" or hosts.counts()[1, 2]["cut"] > 0
    check_all_succeeded(x)
    check_arrived(x, y)
    assert all(x.tally()[lane]["slowest"] > 1.5 for lane in RELIABLE)
    x.end()
    y.end()


@pytest.mark.parametrize("silence", SILENCES)
def test_silence_longer_than_the_patience(hosts: Hosts, mode: str, silence: str) -> None:
    """What comes when it is over may have arrived, though its send failed."""
    begin, end = SILENCES[silence]
    x, y = sending(hosts, mode)
    begin(hosts)
    x.stop()
    x.await_done()
    end(hosts)
    check_failed(x, IMPATIENT)
    check_arrived(x, y, all_of_them=False)
    x.end()
    y.end()
    check_that_it_works(*hosts, mode)


@pytest.mark.parametrize(
    ("fault", "count"),
    [
        ({"loss": 0.05}, "lost"),
        ({"loss": 0.1}, "lost"),  # with twice as many, rxe can send for ever: see docs/errors.md
        ({"reorder": 0.2}, "reordered"),
        ({"duplicate": 0.2}, "duplicated"),
    ],
    ids=str,
)
def test_frames_that_are_lost_reordered_or_doubled(
    hosts: Hosts, mode: str, fault: dict[str, float], count: str
) -> None:
    """Both ways, so that of acknowledgements, too."""
    a, b = hosts
    lossy = "loss" in fault
    x, y = connected(a, b, mode, FOR_EVER if lossy else PATIENT)
    hosts.impair(**fault)  # type: ignore[misc]
    x.send(100)
    y.send(100)
    for end in (x, y):
        if lossy:
            end.await_done_with_rxe()
        else:
            end.await_done()
        assert "slept beside" not in end.program.out
    counts = hosts.counts()
    assert counts[1, 2][count] > 0
    assert counts[2, 1][count] > 0
    for sender, receiver in ((x, y), (y, x)):
        check_all_succeeded(sender)
        check_arrived(sender, receiver)
    hosts.heal()
    x.end()
    y.end()


def test_the_carrier_is_lost_and_comes_back(hosts: Hosts, mode: str) -> None:
    """Whoever waits is told at once; sends fail as if the peer did not answer."""
    a, b = hosts
    x, y = sending(hosts, mode)
    a.unplug()
    x.program.expect("^event PORT_ERR$")
    x.stop()
    x.await_done()
    until(lambda: all_failed(x), "the retries are over")
    a.plug()
    x.program.expect("^event PORT_ACTIVE$")
    books = x.tally()
    assert all(set(books[lane]["told"]) == {"PORT_ERR"} for lane in LANES)
    for lane in RELIABLE:
        statuses = set(books[lane]["failed"].values())
        assert statuses <= {"PORT_ERR", "RETRY_EXC_ERR", "WR_FLUSH_ERR"}
        check_completed(books[lane])
        assert books[lane]["state"] == "QPState.ERR"
    x.end(PARKED)
    y.end()
    check_that_it_works(a, b, mode)


def test_the_carrier_of_the_peer_is_lost_and_comes_back(hosts: Hosts, mode: str) -> None:
    """The peer is told, and we see silence."""
    a, b = hosts
    x, y = sending(hosts, mode)
    b.unplug()
    y.program.expect("^event PORT_ERR$")
    x.stop()
    x.await_done()
    b.plug()
    y.program.expect("^event PORT_ACTIVE$")
    check_failed(x, IMPATIENT)
    check_arrived(x, y, all_of_them=False)
    assert x.tally()["rc"]["told"] == []
    x.end()
    y.end(PARKED)
    check_that_it_works(a, b, mode)


def test_the_peers_host_is_started_anew(hosts: Hosts, mode: str) -> None:
    """What is sent to a QP of its former life, which is tried for ever, costs another one that has
    the same number no more than retries."""
    a, b = hosts
    x, y = connected(a, b, mode, FOR_EVER)
    x.send(1000, 0.01)
    y.await_got(10)
    b.restart()
    check_that_it_works(a, b, mode)
    assert all(books["under_way"] for name, books in x.tally().items() if name in RELIABLE)
    x.end()

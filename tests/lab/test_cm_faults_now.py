# SPDX-License-Identifier: MIT
"""Connections by rdma_cm whose peer dies, stands still or is cut off, in real time.

Each test has an end in asyncio and one in a thread on each host. test_cm_between_hosts.py has more,
in virtual time.
"""

from __future__ import annotations

import math
import re
import time

from cm_runs import MODES, Seen, Story, ends
from lab_runs import built

from cqnotify.hosts import Host, Hosts, Program

QUICK = "10,ack_timeout:14"  # so a send fails after 7 * 67 ms that nobody answers
PATIENCE = 0.47
SLACK = 60.0  # seconds, of a busy machine: in virtual time they are exact
SENDS = "send=2000,0.02"

pytestmark = built


def start(host: Host, *steps: str) -> Program:
    """Ends that talk to the other host."""
    return host.start(*ends(3 - int(host.name.removeprefix("host")), *steps).split())


def both(program: Program, what: str) -> None:
    """The ends of both modes have told that; one may be ahead of the other by several steps."""
    for mode in MODES:
        while not re.search(rf"^{mode} \d+ {what}\b", program.out, re.MULTILINE):
            program.expect("\n")


def connected(
    hosts: Hosts, client: tuple[str, ...], server: tuple[str, ...], options: str = QUICK
) -> tuple[Program, Program]:
    """A client on the first host, a server on the second one, and what they do from then on."""
    a, b = hosts
    serving = start(b, "listen", "request=30", f"accept={options}", *server)
    both(serving, "listen ok")
    asking = start(a, f"connect={options}", *client)
    both(asking, "connect ok")
    both(serving, "accept ok")
    return asking, serving


def story(program: Program) -> Story:
    """To its end, to which nothing leads but the steps."""
    assert program.wait() == 0, program.err
    assert program.err == ""
    told = Story(program.out.splitlines(), same=math.inf)  # one may have to say goodbye twice
    told.check_closing(limit=30.0)  # of a busy machine
    return told


def check_failed(told: Story) -> Seen:
    seen = told.seen("send")
    assert seen.outcome == "CompletionError:RETRY_EXC_ERR"
    assert told.seen("state").outcome == "ERR"
    return seen


def check_that_it_works(hosts: Hosts) -> None:
    steps = ("send=3,0", "close"), ("wait_closed=30", "state", "close")
    client, server = connected(hosts, *steps, "10")
    assert story(client).seen("send").outcome == "ok"
    seen = story(server).seen("state")
    assert seen.more == "DisconnectedError:DISCONNECTED path_errors 0 got 3"


def test_our_host_stands_still_and_a_keepalive_does_not_mind(hosts: Hosts) -> None:
    """The peer asks for nothing: its patience would have ended."""
    a, b = hosts
    server = start(b, "listen", "request=30", "accept=10", "wait_closed=60", "state", "close")
    both(server, "listen ok")
    client = start(a, "connect=10,keepalive:1", "wait_closed=5", "send=3,0", "close")
    both(client, "connect ok")
    a.pause()
    time.sleep(3)
    a.resume()
    told = story(client)
    assert told.seen("wait_closed").outcome == "TimeoutError"
    assert told.seen("send").outcome == "ok"
    assert story(server).seen("state").more.endswith("got 3")


def test_the_peers_host_pauses_more_than_the_patience(hosts: Hosts) -> None:
    """When it goes on, it hears that we have left."""
    client, server = connected(
        hosts,
        (SENDS, "state", "disconnect", "wait_closed=30", "close"),
        ("wait_closed=60", "state", "close"),
    )
    both(client, "has sent some")
    hosts[1].pause()
    both(client, "disconnect")
    hosts[1].resume()
    told = story(client)
    check_failed(told)
    assert told.seen("wait_closed").outcome == "DisconnectedError:DISCONNECTED"
    assert story(server).seen("wait_closed").outcome == "DisconnectedError:DISCONNECTED"
    check_that_it_works(hosts)


def test_the_peers_host_pauses_until_we_no_longer_want_to_connect(hosts: Hosts) -> None:
    """Its program then gets a request behind which there is nobody."""
    a, b = hosts
    first = ("request=30", "accept=10", "wait_closed=30", "close")
    server = start(b, "listen", *first, "request=30", "accept=30", "close")
    both(server, "listen ok")
    story(start(a, "connect=10", "close"))  # after which it knows where the peer is
    both(server, "close ok")
    b.pause()
    client = start(a, "connect=1", "close")
    both(client, "connect TimeoutError")
    b.resume()
    story(client)
    told = story(server)
    assert told.seen("request", 1).outcome == "ok"
    assert told.seen("accept", 1).outcome == "RequestExpiredError"
    check_that_it_works(hosts)

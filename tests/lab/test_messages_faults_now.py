# SPDX-License-Identifier: MIT
"""Messages whose peer stands still, in real time. test_messages_between_hosts.py has other faults,
in virtual time."""

from __future__ import annotations

import re
import time

from cm_runs import PEERS, PORT
from lab_runs import built

from cqnotify.hosts import Host, Hosts, Program

SLACK = 60.0  # seconds, of a busy machine: in virtual time they are exact
PATIENCE = 3.8  # of the device

pytestmark = built


def start(host: Host, *steps: str) -> Program:
    """An end that talks to the other host."""
    peer = 3 - int(host.name.removeprefix("host"))
    return host.start("python", PEERS / "messages_ends.py", f"host{peer}:{PORT}", *steps)


def connected(
    hosts: Hosts, client: tuple[str, ...], server: tuple[str, ...]
) -> tuple[Program, Program]:
    a, b = hosts
    serving = start(b, "listen", "accept=30", *server)
    serving.expect("listen ok")
    asking = start(a, "connect=10", *client)
    serving.expect("accept ok")
    return asking, serving


def outcome(program: Program, step: str) -> str:
    found = re.search(rf"^tasks {PORT} {step} (.*) after", program.out, re.MULTILINE)
    assert found, program.out
    return found[1]


def test_the_peers_host_pauses_less_than_the_devices_patience(hosts: Hosts) -> None:
    client, server = connected(hosts, ("send=40,100000,0.02", "mixed=9", "aclose=30"), ("drain",))
    client.expect("has sent some")
    hosts[1].pause()
    time.sleep(1.5)
    hosts[1].resume()
    assert client.wait() == 0, client.err
    assert server.wait() == 0, server.err
    assert outcome(client, "mixed") == "ok sent 49"
    assert outcome(client, "aclose") == "ok"
    assert outcome(server, "drain") == "FarewellError sent 0 got 49"


def test_the_peers_host_pauses_more_than_the_devices_patience(hosts: Hosts) -> None:
    """We know while it stands still; the same programs can connect again when it goes on."""
    again = ("connect=10", "mixed=9", "aclose=30")
    client, server = connected(
        hosts,
        ("send=4000,100,0.02", "drain", "aclose=10", *again),
        ("recv=4000,10", "abort", "accept=60", "drain"),
    )
    client.expect("has sent some")
    paused = time.monotonic()
    hosts[1].pause()
    client.expect("send LostError")
    assert time.monotonic() - paused < PATIENCE + SLACK
    client.expect("aclose ok")
    hosts[1].resume()
    assert client.wait() == 0, client.err
    assert server.wait() == 0, server.err
    assert outcome(client, "mixed") == "ok sent 9"
    assert outcome(server, "drain") == "FarewellError sent 0 got 9"

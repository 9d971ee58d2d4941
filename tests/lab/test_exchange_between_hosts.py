# SPDX-License-Identifier: MIT
"""The address exchange with a peer that dies, is cut off or comes back in the midst of it: it ends
by its deadline. peers/meet.py is what runs on the hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_runs import built

from cqnotify.hosts import Host, Hosts, Program

MEET = Path(__file__).with_name("peers") / "meet.py"
TIMEOUT = 2.0
LATE = 1.0  # seconds: what a busy machine takes beyond that

pytestmark = built


@pytest.fixture(params=["blocking", "tasks"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def meet(host: Host, mode: str, role: str, server: Host, timeout: float = TIMEOUT) -> Program:
    return host.start("python", "-W", "error", MEET, mode, role, server.address, timeout)


def check_timeout(program: Program, timeout: float = TIMEOUT) -> None:
    took = float(program.expect(r"^TimeoutError after (\S+)$")[1])
    assert timeout <= took < timeout + LATE
    check_end(program)


def check_end(program: Program) -> None:
    assert program.wait() == 0
    assert program.err == ""


def meet_halfway(hosts: Hosts, mode: str, timeout: float = TIMEOUT) -> tuple[Program, Program]:
    """The server has the client's address and has not answered yet."""
    a, b = hosts
    server = meet(b, mode, "server", b, timeout)
    server.expect("^listening$")
    client = meet(a, mode, "client", b, timeout)
    server.expect("^connecting$")
    return client, server


def test_both_meet(hosts: Hosts, mode: str) -> None:
    client, server = meet_halfway(hosts, mode, 30)
    server.write("\n")
    for program in (client, server):
        program.expect("^connected$")
        check_end(program)


def test_a_server_that_can_not_be_reached(hosts: Hosts, mode: str) -> None:
    a, b = hosts
    meet(b, mode, "server", b, 30).expect("^listening$")
    assert a.run("getent", "hosts", b.name).returncode == 0
    hosts.cut()
    check_timeout(meet(a, mode, "client", b))


def test_both_are_cut_off_halfway(hosts: Hosts, mode: str) -> None:
    client, server = meet_halfway(hosts, mode)
    hosts.cut()
    server.write("\n")
    check_timeout(client)
    check_timeout(server)


def test_the_servers_host_dies_halfway(hosts: Hosts, mode: str) -> None:
    client, _ = meet_halfway(hosts, mode)
    hosts[1].kill()
    check_timeout(client)


def test_the_clients_host_dies_halfway(hosts: Hosts, mode: str) -> None:
    _, server = meet_halfway(hosts, mode)
    hosts[0].kill()
    server.write("\n")
    # If its neighbours do not know its address any more, our QP can't be connected to it.
    match = server.expect(r"^(TimeoutError|VerbsError) after (\S+)$")
    assert float(match[2]) < TIMEOUT + LATE
    check_end(server)


def test_a_client_that_says_nothing_and_whose_host_dies(hosts: Hosts, mode: str) -> None:
    a, b = hosts
    server = meet(b, mode, "server", b, 4)
    server.expect("^listening$")
    call = f"import socket; s = socket.create_connection(({b.address!r}, 18515))"
    a.start("python", "-c", f"{call}; print('there'); input()").expect("^there$")
    a.kill()
    check_timeout(server, 4)


def test_a_host_that_comes_back_does_not_know_of_it(hosts: Hosts, mode: str) -> None:
    """Its answer ends the exchange before the deadline."""
    _, server = meet_halfway(hosts, mode, 60)
    hosts[0].restart()
    server.write("\n")
    match = server.expect(r"^ConnectionResetError after (\S+)$")
    assert float(match[1]) < 30
    check_end(server)

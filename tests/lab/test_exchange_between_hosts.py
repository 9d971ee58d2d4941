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
LATE = 60.0  # seconds: what a busy machine takes beyond that; TCP alone would try for minutes

pytestmark = built


@pytest.fixture(params=["blocking", "tasks"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def meet(host: Host, mode: str, role: str, server: Host, timeout: float = TIMEOUT) -> Program:
    """An end that has come up, and begins when it gets a line: no deadline has to wait for it."""
    words = [mode, role, server.address, str(timeout)]
    program = host.start("python", "-W", "error", MEET, *words)
    program.expect("^ready$")
    return program


def serving(host: Host, mode: str, timeout: float) -> Program:
    server = meet(host, mode, "server", host, timeout)
    server.write("\n")
    server.expect("^listening$")
    return server


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
    client = meet(a, mode, "client", b, timeout)
    server = serving(b, mode, timeout)
    client.write("\n")
    server.expect("^connecting$")
    return client, server


def both_meet(hosts: Hosts, mode: str) -> None:
    client, server = meet_halfway(hosts, mode, 30)
    server.write("\n")
    for program in (client, server):
        program.expect("^connected$")
        check_end(program)


def test_both_meet(hosts: Hosts, mode: str) -> None:
    both_meet(hosts, mode)


def test_a_server_that_can_not_be_reached(hosts: Hosts, mode: str) -> None:
    a, b = hosts
    serving(b, mode, 30)
    client = meet(a, mode, "client", b)
    assert a.run("getent", "hosts", b.name).returncode == 0
    hosts.cut()
    client.write("\n")
    check_timeout(client)


def test_both_are_cut_off_halfway(hosts: Hosts, mode: str) -> None:
    """They have met before: a QP is connected to a peer whose MAC address is known."""
    both_meet(hosts, mode)
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
    server = serving(b, mode, 4)
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

# SPDX-License-Identifier: MIT
"""cqnotify latency and bandwidth with programs of perftest, in either role, asleep and polling.

The peer polls: ib_send_lat -e takes any event for the one that it waits for, and then looks at a
completion that it has not got, or waits for ever.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_support import (
    Capture,
    Outcome,
    both,
    command,
    figures,
    outcome,
    refusal,
    server,
    started,
)
from support import DEADLINE, until

from cqnotify import Context

pytestmark = pytest.mark.usefixtures("conversation")

PROGRAMS = {"latency": "ib_send_lat", "bandwidth": "ib_write_bw", "sends": "ib_send_bw"}
OPS = {"latency": "send", "bandwidth": "write", "sends": "send"}
COMMANDS = {"latency": "latency", "bandwidth": "bandwidth", "sends": "bandwidth"}
ROW = {  # of perftest's table: size, iterations, and the other columns
    "latency": r"^ (\d+) +(\d+)((?:[ \t]+\S+){7})[ \t]*$",
    "bandwidth": r"^ (\d+) +(\d+)((?:[ \t]+\S+){3})[ \t]*$",
}


def theirs(ctx: Context, name: str, *args: object) -> list[str]:
    program = shutil.which(PROGRAMS[name])
    assert program is not None
    gid = ("-x", ctx.find_gid().index)
    # ib_send_bw reports as well where it cannot tell how fast its clock is, as on a busy machine.
    reports = ["-F"] * (name == "sends")
    return [program, "-d", ctx.name, *map(str, (*gid, *args)), *reports]


def ours(name: str, *args: object) -> list[object]:
    return ["--perftest", "--op", OPS[name], "--json", *args]


def check(name: str, found: dict[str, Any], said: str, size: int, n: int) -> None:
    """Both ends have a row, of what both have sent."""
    (row,) = re.findall(ROW[COMMANDS[name]], said, re.M)
    assert (int(row[0]), int(row[1])) == (size, n)
    (one,) = found["results"]
    assert (one["size"], one["iterations"]) == (size, n)
    assert found["perftest"]
    assert one["remote"] is None
    # Its times are "inf" where other work of the machine disturbs how it measures its clock.
    if name == "latency":
        assert 0 < one["t_min"] <= one["t_typical"] <= one["t_max"]


def ended_well(peer: subprocess.Popen[str]) -> str:
    """What it has printed."""
    code, out, err = outcome(peer)
    assert code == 0, (out, err)
    assert "Unable to read" not in err, "they do not agree on how often they wait for each other"
    return out


both_ways = pytest.mark.parametrize(("sleeps", "n"), [(True, 200), (False, 20)])


@both_ways
def test_our_server_with_ib_send_lat(ctx: Context, sleeps: bool, n: int) -> None:
    common = ["-n", n, "-s", 64]
    with (
        server(*ours("latency", *common, *["-e"] * sleeps), name="latency") as (us, port),
        started([*theirs(ctx, "latency", "-p", port, *common), "127.0.0.1"]) as peer,
    ):
        out = ended_well(peer)
        found = figures(*outcome(us))
    check("latency", found, out, 64, n)
    assert found["role"] == "server"
    assert (found["results"][0]["local"]["events"] > 0) == sleeps


@both_ways
def test_our_client_with_ib_send_lat(ctx: Context, sleeps: bool, n: int, free_port: int) -> None:
    found = with_server_of_perftest(ctx, "latency", 64, n, free_port, sleeps=sleeps)
    assert (found["results"][0]["local"]["events"] > 0) == sleeps


def test_our_client_with_ib_write_bw(ctx: Context, free_port: int) -> None:
    found = with_server_of_perftest(ctx, "bandwidth", 4096, 20, free_port)
    assert found["results"][0]["bytes_per_second"] > 0


@pytest.mark.parametrize(
    ("name", "connection"),
    [("latency", "UC"), ("latency", "UD"), ("bandwidth", "UC"), ("sends", "UC"), ("sends", "UD")],
)
def test_our_client_with_services_that_do_not_send_again(
    ctx: Context, name: str, connection: str, free_port: int
) -> None:
    found = with_server_of_perftest(ctx, name, 512, 50, free_port, "-c", connection)
    assert found["connection"] == connection


@pytest.mark.parametrize(("name", "connection"), [("latency", "UD"), ("sends", "UC")])
def test_our_server_with_services_that_do_not_send_again(
    ctx: Context, name: str, connection: str
) -> None:
    common = ["-n", 50, "-s", 512, "-c", connection]
    with (
        server(*ours(name, *common), name=COMMANDS[name]) as (us, port),
        started([*theirs(ctx, name, "-p", port, *common), "127.0.0.1"]) as peer,
    ):
        out = ended_well(peer)
        found = figures(*outcome(us))
    check(name, found, out, 512, 50)
    assert found["results"][0].get("lost", 0) == 0, "it has begun to count before they came"


def test_our_server_with_ib_write_bw(ctx: Context) -> None:
    common = ["-n", 200, "-s", 4096]

    def run() -> tuple[Outcome, Outcome]:
        with (
            server(*ours("bandwidth", *common), name="bandwidth") as (us, port),
            started([*theirs(ctx, "bandwidth", "-p", port, *common), "127.0.0.1"]) as peer,
        ):
            return outcome(peer), outcome(us)

    (code, out, err), said = run()
    for _ in range(9):
        if "Correlation coefficient" in err:  # on a busy machine it can't tell its clock's rate
            (code, out, err), said = run()
    assert code == 0, (out, err)
    found = figures(*said)
    check("bandwidth", found, out, 4096, 200)
    assert found["role"] == "server"
    (row,) = re.findall(ROW["bandwidth"], out, re.M)
    average = float(row[2].split()[1])  # MiB a second, of which perftest prints two decimals
    assert abs(found["results"][0]["bytes_per_second"] / 2**20 - average) < 0.01 + average / 100


def listens(port: int) -> bool:
    """Whether anybody does; a connection to try it would be the one that is served."""
    tables = [path.read_text() for path in Path("/proc/net").glob("tcp*")]
    return any(re.search(rf":{port:04X} [0:]+ 0A ", table) for table in tables)


def with_server_of_perftest(
    ctx: Context, name: str, size: int, n: int, port: int, *options: str, sleeps: bool = False
) -> dict[str, Any]:
    """The figures of our client, after both have ended well."""
    common = ["-n", n, "-s", size, "-p", port, *options]
    ways = ["-e"] * sleeps
    with started(theirs(ctx, name, *common)) as peer:
        until(lambda: listens(port), "it listens")
        with started(command(COMMANDS[name], *ours(name, *common, *ways), "127.0.0.1")) as us:
            said = outcome(us)
        out = ended_well(peer)
    found = figures(*said)
    check(name, found, out, size, n)
    return found


def test_an_ib_send_lat_that_dies_is_an_error(ctx: Context) -> None:
    common = ["-n", 10**6, "-s", 64, "-e"]
    with (
        server("--perftest", "--op", "send", *common, name="latency") as (us, port),
        started([*theirs(ctx, "latency", "-p", port, *common), "127.0.0.1"]) as peer,
    ):
        assert us.stdout is not None
        us.stdout.readline()  # so they have met
        us.stdout.readline()
        peer.kill()
        assert outcome(us) == (1, "", "cqnotify: the peer has gone\n")


def test_a_client_of_perftest_is_told_apart_where_the_option_is_missing(ctx: Context) -> None:
    with (
        server("-n", 20, "--timeout", 3, name="latency") as (us, port),
        started([*theirs(ctx, "latency", "-p", port, "-n", 20), "127.0.0.1"]),
    ):
        assert us.stderr is not None
        said = us.stderr.readline()
    assert re.fullmatch(
        r"cqnotify: 127\.0\.0\.1:\d+ is rejected: not an address record: it begins with "
        r"b'6\.\d\d\\x00', as programs of perftest do; if the peer is a program of perftest, such "
        r"as ib_send_lat: --perftest\n",
        said,
    )


def test_a_server_of_perftest_may_be_one_where_the_option_is_missing(
    ctx: Context, free_port: int, capsys: Capture
) -> None:
    with started(theirs(ctx, "latency", "-p", free_port, "-n", 20)):
        until(lambda: listens(free_port), "it listens")
        said = refusal(capsys, 1, "latency", "-p", str(free_port), "127.0.0.1")
    assert said.startswith("cqnotify: the exchange of addresses failed: ")
    assert said.endswith(
        "; if the peer is a program of perftest, such as ib_send_lat: --perftest\n"
    )


@pytest.mark.parametrize("perftest_is", ["server", "client"])
def test_where_only_one_of_ours_has_the_option_both_say_so(
    perftest_is: str, capsys: Capture
) -> None:
    at_server, at_client = (["--perftest"] * (perftest_is == role) for role in ("server", "client"))
    with server(*at_server, "--timeout", 3, name="latency") as (us, port):
        said = refusal(capsys, 1, "latency", "-p", str(port), *at_client, "127.0.0.1")
        code, _, err = outcome(us)
    assert code == 1
    assert "--perftest" in said
    assert "--perftest" in err


def test_scripts_of_perftest_may_have_an_option_that_means_nothing(capsys: Capture) -> None:
    (code, *_), (other, *_) = both(capsys, ["-n", 5, "-F"], ["-n", 5, "--CPU-freq"], name="latency")
    assert (code, other) == (0, 0)


def test_a_server_that_says_nothing_is_refused_in_words(
    listener: socket.socket, port: int, capsys: Capture
) -> None:
    args = ("--perftest", "--timeout", "1", "-p", str(port), "127.0.0.1")
    assert refusal(capsys, 1, "latency", *args) == "cqnotify: the peer sent nothing for 1 s\n"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (b"5.60", "the peer's version is b'5.60': the oldest is 5.70"),
        (
            b"",
            "the peer has gone at the first word; if it is `cqnotify latency`, give --perftest to "
            "neither",
        ),
    ],
    ids=["old", "gone"],
)
def test_a_server_that_cannot_be_a_peer_is_refused_in_words(
    listener: socket.socket, port: int, version: bytes, words: str, capsys: Capture
) -> None:
    def answer() -> None:
        sock, _ = listener.accept()
        with sock:
            assert len(sock.recv(16)) == 16
            if version:
                sock.sendall(version.ljust(16, b"\0"))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(answer)
        said = refusal(capsys, 1, "latency", "--perftest", "-p", str(port), "127.0.0.1")
        done.result(DEADLINE)
    assert said == f"cqnotify: {words}\n"

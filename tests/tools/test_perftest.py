# SPDX-License-Identifier: MIT
"""cqnotify latency and bandwidth with programs of perftest, in either role, asleep and polling."""

from __future__ import annotations

import re
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_support import Capture, command, figures, outcome, refusal, server, started
from support import DEADLINE, until

from cqnotify import Context

pytestmark = pytest.mark.usefixtures("conversation")

PROGRAMS = {"latency": "ib_send_lat", "bandwidth": "ib_write_bw"}
OPS = {"latency": "send", "bandwidth": "write"}
ROW = {  # of perftest's table: size, iterations, and the other columns
    "latency": r"^ (\d+) +(\d+)((?:[ \t]+\S+){7})[ \t]*$",
    "bandwidth": r"^ (\d+) +(\d+)((?:[ \t]+\S+){3})[ \t]*$",
}


def theirs(ctx: Context, name: str, *args: object) -> list[str]:
    program = shutil.which(PROGRAMS[name])
    assert program is not None
    gid = ("-x", ctx.find_gid().index)
    return [program, "-d", ctx.name, *map(str, (*gid, *args))]


def ours(name: str, *args: object) -> list[object]:
    return ["--perftest", "--op", OPS[name], "--json", *args]


def check(name: str, found: dict[str, Any], said: str, size: int, n: int) -> None:
    """Both ends have a row, of what both have sent."""
    (row,) = re.findall(ROW[name], said, re.M)
    assert (int(row[0]), int(row[1])) == (size, n)
    (one,) = found["results"]
    assert (one["size"], one["iterations"]) == (size, n)
    assert found["perftest"]
    assert one["remote"] is None
    if name == "latency":
        assert 0 < one["t_min"] <= one["t_typical"] <= one["t_max"]


both_ways = pytest.mark.parametrize(("sleeps", "n"), [(True, 200), (False, 20)])


@both_ways
def test_our_server_with_ib_send_lat(ctx: Context, sleeps: bool, n: int) -> None:
    common = ["-n", n, "-s", 64, *["-e"] * sleeps]
    with (
        server(*ours("latency", *common), name="latency") as (us, port),
        started([*theirs(ctx, "latency", "-p", port, *common), "127.0.0.1"]) as peer,
    ):
        code, out, err = outcome(peer)
        assert code == 0, (out, err)
        found = figures(*outcome(us))
    check("latency", found, out, 64, n)
    assert found["role"] == "server"
    assert (found["results"][0]["local"]["events"] > 0) == sleeps


@both_ways
def test_our_client_with_ib_send_lat(ctx: Context, sleeps: bool, n: int, free_port: int) -> None:
    found = with_server_of_perftest(ctx, "latency", 64, n, free_port, *["-e"] * sleeps)
    assert (found["results"][0]["local"]["events"] > 0) == sleeps


def test_our_client_with_ib_write_bw(ctx: Context, free_port: int) -> None:
    found = with_server_of_perftest(ctx, "bandwidth", 4096, 20, free_port)
    assert found["results"][0]["bytes_per_second"] > 0


def listens(port: int) -> bool:
    """Whether anybody does; a connection to try it would be the one that is served."""
    tables = [path.read_text() for path in Path("/proc/net").glob("tcp*")]
    return any(re.search(rf":{port:04X} [0:]+ 0A ", table) for table in tables)


def with_server_of_perftest(
    ctx: Context, name: str, size: int, n: int, port: int, *options: str
) -> dict[str, Any]:
    """The figures of our client, after both have ended well."""
    common = ["-n", n, "-s", size, "-p", port, *options]
    with started(theirs(ctx, name, *common)) as peer:
        until(lambda: listens(port), "it listens")
        with started(command(name, *ours(name, *common), "127.0.0.1")) as us:
            found = figures(*outcome(us))
        code, out, err = outcome(peer)
        assert code == 0, (out, err)
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


def test_a_server_that_says_nothing_is_refused_in_words(
    listener: socket.socket, port: int, capsys: Capture
) -> None:
    args = ("--perftest", "--timeout", "1", "-p", str(port), "127.0.0.1")
    assert refusal(capsys, 1, "latency", *args) == "cqnotify: the peer said nothing for 1 s\n"


@pytest.mark.parametrize(
    ("version", "words"),
    [(b"5.60", "the peer's version is b'5.60': the oldest is 5.70"), (b"", "the peer has gone")],
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

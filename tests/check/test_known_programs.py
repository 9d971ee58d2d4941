# SPDX-License-Identifier: MIT
"""Programs of rdma-core, perftest and qperf under the command, both ends of them.

Those that are right are not accused. perftest had programs that sleep for ever: these are found.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from pairs_support import End, converse, listens_by_rdma_cm, listens_by_tcp
from support import address_of

from cqnotify import Context

not_on_iwarp = pytest.mark.not_on_iwarp("its QPs are connected by rdma_cm alone")

PORT = 18600


def assert_right(ends: tuple[End, End], sleeps: bool, did: str = "completions") -> None:
    """Both have ended well, used the device, slept if they must, and are accused of nothing."""
    assert [(end.code, end.rules) for end in ends] == [(0, set())] * 2, [end.text for end in ends]
    assert sum(end.counts[did] for end in ends) > 0
    assert sum(end.counts["events"] for end in ends) > 0 or not sleeps


def with_device(ctx: Context, program: str, *options: object) -> list[object]:
    """The command of a program that exchanges addresses by TCP, and says which GID is its own."""
    gid_option = "-g" if program.startswith("ibv_") else "-x"
    gid = ctx.find_gid().index
    return [program, "-d", ctx.name, gid_option, gid, "-p", PORT, *options]


def by_tcp(folder: Path, command: list[object], end_at: str = "") -> tuple[End, End]:
    client = [*command, "127.0.0.1"]
    return converse(folder, command, client, lambda: listens_by_tcp(PORT), end_at)


@not_on_iwarp
@pytest.mark.parametrize("service", ["rc", "uc", "ud", "srq"])
def test_a_pingpong_of_rdma_core_is_not_accused(ctx: Context, service: str, tmp_path: Path) -> None:
    command = with_device(ctx, f"ibv_{service}_pingpong", "-e", "-n", 100)
    assert_right(by_tcp(tmp_path, command), sleeps=True)


class Pair(NamedTuple):
    """A program of rdma-core's librdmacm; HOST and PORT are put in."""

    server: str
    client: str
    port: int
    sleeps: bool  # in any case


PAIRS = {
    "rping": Pair(
        "rping -s -C 20 -v -a HOST -p PORT", "rping -c -C 20 -a HOST -p PORT", PORT, True
    ),
    "ucmatose": Pair("ucmatose -b HOST -p PORT", "ucmatose -s HOST -p PORT", PORT, False),
    "udaddy": Pair("udaddy -b HOST", "udaddy -s HOST", 7174, False),
    "rdma_client": Pair("rdma_server -p PORT", "rdma_client -s HOST -p PORT", PORT, True),
    "rdma_xclient": Pair("rdma_xserver -p PORT", "rdma_xclient -s HOST -p PORT", PORT, True),
    "rstream": Pair("rstream -p PORT", "rstream -s HOST -p PORT", PORT, False),
    "rstream-blocking": Pair("rstream -T b -p PORT", "rstream -T b -s HOST -p PORT", PORT, True),
    "riostream": Pair("riostream -p PORT", "riostream -s HOST -p PORT", PORT, False),
}
"""The last three have librdmacm's sockets, which poll for a while before they sleep."""


@pytest.mark.not_on_iwarp("no UD; the sockets leave receives posted", only="udaddy|stream")
@pytest.mark.parametrize("name", PAIRS)
def test_a_program_of_librdmacm_is_not_accused(ctx: Context, name: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    few = ["-S", 1000, "-C", 100, "-I", 10] if "stream" in name else []

    def command(text: str) -> list[object]:
        words = text.replace("HOST", address_of(ctx)).replace("PORT", str(pair.port)).split()
        return [*words, *few]

    ends = converse(
        tmp_path, command(pair.server), command(pair.client), lambda: listens_by_rdma_cm(pair.port)
    )
    assert_right(ends, pair.sleeps)


@not_on_iwarp
@pytest.mark.parametrize(
    "words",
    [
        "ib_send_bw -e -n 1000",
        "ib_send_bw -e -b -n 200",
        "ib_write_bw -n 200",
        "ib_write_lat -n 200",
        "ib_read_lat -e -n 200",
        "ib_read_bw -e -n 200",
        "ib_atomic_lat -e -n 200",
    ],
)
def test_a_program_of_perftest_that_is_right_is_not_accused(
    ctx: Context, words: str, tmp_path: Path
) -> None:
    program, *options = words.split()
    assert_right(by_tcp(tmp_path, with_device(ctx, program, "-F", *options)), "-e" in options)


@pytest.mark.not_on_iwarp("qperf asks for a QP that there is none of", only="rc_bw|rdma_read")
@pytest.mark.parametrize("what", ["rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_bw"])
def test_qperf_which_sleeps_is_not_accused(ctx: Context, what: str, tmp_path: Path) -> None:
    server = ["qperf", "-lp", PORT]
    devices = ["-cm1", "-li", ctx.name, "-ri", ctx.name]
    patient = ["-to", 600]  # s; it waits for 5 otherwise, which a slow machine needs
    client = [*server, "-t", 1, *patient, *devices, address_of(ctx), what, "quit"]
    ends = converse(tmp_path, server, client, lambda: listens_by_tcp(PORT))
    # On a slow machine its second is over before a queue of sends is full and it sleeps.
    latency = what == "rc_lat"
    assert_right(ends, sleeps=latency, did="completions" if latency else "posts")


def is_mended(program: str) -> bool:
    """Release 23.07, which calls itself 6.16, polls before it sleeps; so do the later ones."""
    shown = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    (major, minor) = re.findall(r"Version: (\d+)\.(\d+)", shown)[0]
    return (int(major), int(minor)) >= (6, 16)


HANGS = {
    "takes 16 completions of 16 QPs": "ib_send_bw -s 2 -q 16 -n 6400 -e -Q 1 -t 512",
    "takes 16 completions of 16 QPs, in both directions": (
        "ib_send_bw -s 64 -b -e -q 16 -n 200 -Q 1"
    ),
    "takes any event for the one that it waits for": "ib_send_lat -e -n 20000",
}
"""Why they sleep at last though completions wait."""


@not_on_iwarp
@pytest.mark.parametrize("why", HANGS)
def test_a_program_of_perftest_that_hangs_is_told_why(
    ctx: Context, why: str, tmp_path: Path
) -> None:
    program, *options = HANGS[why].split()
    ends = by_tcp(tmp_path, with_device(ctx, program, "-F", *options), end_at="lost-wakeup")
    if is_mended(program):
        assert_right(ends, sleeps=True)
        return
    found = [f for end in ends for f in end.accusations if f["rule"] == "lost-wakeup"]
    if program in BY_CHANCE and not found:
        assert all(end.rules <= set(ALSO[program]) for end in ends), [end.text for end in ends]
        return
    assert found, [end.text for end in ends]
    for finding in found:
        assert finding["values"]["armed"] == "before"
        assert finding["values"]["call"] == "ibv_get_cq_event"
        assert finding["values"]["completions"] > 0
    assert 66 in [end.code for end in ends]
    assert ends[0].rules | ends[1].rules <= {"lost-wakeup", *ALSO.get(program, ())}


ALSO = {
    "ib_send_bw": ("late-wakeup",),  # where an event comes after all
    # After the event of another CQ it posts a send before the last one's completion was polled.
    "ib_send_lat": ("cq-too-small", "not-polled-after-arm"),
}
BY_CHANCE = {"ib_send_lat"}
"""All of their messages may arrive before one comes at the wrong time."""

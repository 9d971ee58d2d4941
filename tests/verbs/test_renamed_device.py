# SPDX-License-Identifier: MIT
"""Devices whose names change while a program runs: it never gets another device than it named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import python

from cqnotify import Context, devices

LISTED = "print(*[f'{d.name}={d.guid:x}' for d in cqnotify.devices()])"

PROGRAM = f"""
import cqnotify, sys
first, second = sys.argv[1:]
{LISTED}
cqnotify.Context(first).close()
print(flush=True)
input()
{LISTED}
for name in (first, second, None):
    try:
        print(cqnotify.Context(name).name)
    except cqnotify.VerbsError as e:
        print(e)
"""


def rename(old: str, new: str) -> None:
    subprocess.run(["rdma", "dev", "set", old, "name", new], check=True)


def swap(a: str, b: str) -> None:
    for old, new in ((a, "between0"), (b, a), ("between0", b)):
        rename(old, new)


@pytest.fixture
def swapping(ctx: Context, ctx2: Context) -> Iterator[Callable[[], None]]:
    """Swaps the names of the two devices, until the test ends."""
    if os.geteuid() != 0:
        pytest.skip("only root renames devices")
    names, swapped = (ctx.name, ctx2.name), []

    def do() -> None:
        swapped.append(names)
        swap(*names)

    yield do
    for pair in swapped:
        swap(*pair)


def test_after_two_names_were_swapped_the_wrong_device_is_not_opened(
    ctx: Context, ctx2: Context, swapping: Callable[[], None]
) -> None:
    guids = {device.name: device.guid for device in devices()}
    command = [sys.executable, "-c", PROGRAM, ctx.name, ctx2.name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        before = program.stdout.readline().split()
        assert program.stdout.readline() == "\n"
        swapping()
        after, *opened = program.communicate("\n")[0].splitlines()
    assert before == [f"{name}={guid:x}" for name, guid in guids.items()]
    assert dict(entry.split("=") for entry in after.split()) == {
        ctx.name: f"{guids[ctx2.name]:x}",
        ctx2.name: f"{guids[ctx.name]:x}",
    }
    assert len(opened) == 3
    assert f"{ctx.name} was called {ctx2.name} when this process first listed" in opened[0]
    assert f"{ctx2.name} was called {ctx.name} when this process first listed" in opened[1]
    assert "restart the program" in opened[2]


def test_a_new_process_opens_the_device_that_has_the_name_now(
    ctx: Context, ctx2: Context, swapping: Callable[[], None]
) -> None:
    guids = {device.name: device.guid for device in devices()}
    swapping()
    program = (
        "import cqnotify, sys\nprint(f'{cqnotify.Context(sys.argv[1]).query_device().node_guid:x}')"
    )
    done = python("-c", program, ctx.name)
    assert (done.stdout, done.stderr) == (f"{guids[ctx2.name]:x}\n", "")

# SPDX-License-Identifier: MIT
"""The example programs run, each as two processes, and say what they did."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEADLINE

from cqnotify import Context

EXAMPLES = Path(__file__).parents[2] / "examples"


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "utf8", "-W", "error", *args],
        cwd=EXAMPLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_both(program: str, *both: str, client: list[str] | None = None) -> tuple[str, str]:
    """The outputs of the server and of the client, after a good end of both."""
    with start(program, *both, "--port", "0") as server:
        try:
            assert server.stdout is not None
            first = server.stdout.readline()
            port = first.removeprefix("listening on port ").strip()
            assert port.isdigit(), (first, server.stderr and server.stderr.read())
            other = start(program, *both, "--connect", "127.0.0.1", "--port", port, *(client or []))
            with other:
                try:
                    client_out, client_err = other.communicate(timeout=4 * DEADLINE)
                finally:
                    other.kill()
            server_out, server_err = server.communicate(timeout=4 * DEADLINE)
        finally:
            server.kill()
    assert (other.returncode, client_err) == (0, ""), client_err
    assert (server.returncode, server_err) == (0, ""), server_err
    return server_out, client_out


@pytest.mark.usefixtures("ctx")
def test_echo() -> None:
    server, client = run_both("echo.py", client=["hello", "w\u00f6rld", "again"])
    assert client == "hello\nw\u00f6rld\nagain\n"
    assert server == "echoed 3\n"


@pytest.mark.usefixtures("ctx")
def test_read_blocks() -> None:
    server, client = run_both("read_blocks.py", "--blocks", "256")
    served = re.search("^served ([0-9a-f]{64})$", server, re.M)
    read = re.search("^read ([0-9a-f]{64})$", client, re.M)
    assert served is not None
    assert read is not None
    assert served[1] == read[1]
    assert re.search(r"^256 blocks, \d+\.\d MB/s, \d+ events$", client, re.M)


def test_solicited(ctx: Context) -> None:
    server, client = run_both("solicited.py", "--batches", "20")
    assert client == "sent 320\n"
    found = re.fullmatch(r"320 messages, (\d+) events, (\d+) wake-ups\n", server)
    assert found, server
    # A wake-up for each batch, or fewer where the receiver was slow; none for a message alone.
    assert 1 <= int(found[2]) <= 20
    assert int(found[1]) <= 21  # and the last send's own

# SPDX-License-Identifier: MIT
"""The example programs run, each as two processes, and say what they did."""

from __future__ import annotations

import re
import signal
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_support import outcome, started
from support import DEADLINE, address_of

from cqnotify import Context

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_both(
    program: str, *both: str, client: Sequence[str] = (), host: str = "127.0.0.1"
) -> tuple[str, str]:
    """The outputs of the server and of the client, after a good end of both."""
    command = [sys.executable, "-X", "utf8", "-W", "error", program, *both, "--port"]
    with started([*command, "0"], cwd=EXAMPLES) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        port = first.removeprefix("listening on port ").strip()
        assert port.isdigit(), (first, server.stderr and server.stderr.read())
        with started([*command, port, "--connect", host, *client], cwd=EXAMPLES) as other:
            code, client_out, err = outcome(other)
            assert (code, err) == (0, ""), err
        code, server_out, err = outcome(server)
        assert (code, err) == (0, ""), err
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


def test_arrays(ctx: Context) -> None:
    server, client = run_both("arrays.py", host=address_of(ctx), client=["--rows", "700", "walk"])
    assert server == f"kept walk {700 * 8000}\n"
    first, *others = client.splitlines()
    assert re.fullmatch(r"put 5600000 bytes, \d+\.\d MB/s", first)
    assert others == [
        "got rows 0 to 1 as put: True",
        "got rows 350 to 700 as put: True",
        "no array x",
    ]


@pytest.mark.usefixtures("conversation")
def test_metrics() -> None:
    command = [sys.executable, "-W", "error", "metrics.py", "--messages", "20", "--port", "0"]
    with started(command, cwd=EXAMPLES) as program:
        assert program.stdout is not None
        url, counts, latency, end = (program.stdout.readline() for _ in range(4))
        assert counts == "20 messages, 20 events, 20 wake-ups of tasks, 0 spurious events\n"
        assert re.fullmatch(r"\d+ us from an event to its task, .* \d+ us or less\n", latency)
        assert end == "Ctrl-C ends\n"
        page = urllib.request.urlopen(url.strip(), timeout=DEADLINE).read().decode()
        assert re.search(r'^cqnotify_events_total{cq="receives",device="\w+"} 20.0$', page, re.M)
        program.send_signal(signal.SIGINT)
        code, _, err = outcome(program)
        assert (code, err) == (0, "")


def test_mlx5dv(ctx: Context) -> None:
    """A function of another provider says so of this device; on one of mlx5 the program goes on."""
    command = [sys.executable, "-X", "utf8", "-W", "error", "mlx5dv.py", ctx.name]
    with started(command, cwd=EXAMPLES) as program:
        code, out, err = outcome(program)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"{ctx.name}(: version \d+, flags 0x\w+| is not a device of mlx5)\n", out)

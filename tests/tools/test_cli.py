# SPDX-License-Identifier: MIT
"""The command line: what all commands have in common, devices, watch."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli_support import (
    Capture,
    Terminal,
    asleep,
    command,
    cqnotify,
    each_signal,
    in_lab,
    outcome,
    read_terminal,
    refusal,
    server,
    started,
    state_of,
    usage_of,
    watching,
)
from support import DEADLINE, ip_link, python, until

from cqnotify import Context, Device, DeviceCapFlags, VerbsError, __version__, devices
from cqnotify.cli import COMMANDS, EXIT_CODES, LONGEST, OBSERVERS, main, seconds
from cqnotify.cli._terminal import colored
from cqnotify.cli.devices import SETS, _plain_value, _shown
from cqnotify.context import gid_text

# ---- all commands ---------------------------------------------------------------------------


def test_the_version() -> None:
    assert cqnotify("--version").stdout == f"cqnotify {__version__}\n"


@pytest.mark.parametrize("args", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_says_all_exit_codes(args: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as e:
        main([*args, "--help"])
    assert e.value.code == 0
    out = capsys.readouterr().out
    assert EXIT_CODES in out
    assert not args or "--json" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "args",
    [
        "",
        "nonsense",
        "demo --messages 0",
        "demo --interval -1",
        "watch --count 0",
        "watch --timeout 0",
        "watch --timeout nan",
        "watch --timeout 2000001",
        "pingpong --size 0",
        "pingpong --iters x",
        "pingpong --mtu 1000",
        "pingpong --port 65536",
        "pingpong --port 0 localhost",
        "pingpong --bind :: localhost",
        "pingpong --type xrc",
        "pingpong --num-qp 4",
        "pingpong --type srq --num-qp 256",
        "pingpong --type srq --rx-depth 15",
        "pingpong --type ud --mtu 1024",
        "pingpong --sl 256",
        "pingpong --timeout inf",
        "pingpong --plot picture.gif",
        "latency --op nonsense",
        "latency --op atomic --size 4",
        "latency --op atomic --all",
        "latency --size 2 --all",
        "latency --iters 5 --duration 1",
        "latency --op send --write_with_imm",
        "latency --op read --inline_size 8",
        "latency --port 0 localhost",
        "latency --bind :: localhost",
        "latency --rdma_cm --mtu 1024",
        "latency --qp 2",
        "latency --perftest --op write",
        "latency --perftest --all",
        "latency --perftest --duration 1",
        "latency --perftest --iters 4",
        "latency --perftest --rdma_cm",
        "bandwidth --perftest --op write --bidirectional localhost",
        "bandwidth --perftest --op write --qp 2 localhost",
        "bandwidth --op atomic",
        "bandwidth --tx-depth 0",
        "bandwidth --qp 257",
        "bandwidth --rdma_cm --ib-dev rxe0",
        "bandwidth --plot picture.gif",
        "conformance --type srq",
        "conformance --ib-port 0",
        "conformance --gid-idx -1",
        "conformance --gid-idx 256",
        "conformance --ib-port x",
        "conformance --gid-idx x",
        "conformance more",
        "conformance --cases --sequences",
        "check",
        "check --",
        "check --error-exitcode 256 true",
        "check --from here --print-env there",
        "check --from here true",
        "check --suppress nonsense true",
        "trace --records 999 -- true",
        "trace --records x -- true",
    ],
)
def test_wrong_usage_is_exit_code_2(args: str, capsys: Capture) -> None:
    assert usage_of(capsys, *args.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_a_command_does_not_know_shows_its_own_usage(
    name: str, capsys: Capture
) -> None:
    said = usage_of(capsys, name, "--bogus")
    assert said.startswith(f"usage: cqnotify {name} [-h]")
    assert said.endswith(f"cqnotify {name}: error: unrecognized arguments: --bogus\n")


@pytest.mark.parametrize("name", ["watch", "conformance", "demo"])
def test_a_device_without_its_option_is_told_the_option(name: str, capsys: Capture) -> None:
    said = usage_of(capsys, name, "rxe1")
    assert said.endswith("arguments: rxe1 (a device is chosen by -d: -d rxe1)\n")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OBSERVERS])
def test_no_such_device_is_exit_code_3_and_one_line(name: str, capsys: Capture) -> None:
    said = refusal(capsys, 3, name, "--device", "nonsense")
    assert re.fullmatch(r"cqnotify: .*\n", said)


def test_all_times_that_are_taken_can_be_slept() -> None:
    read, write = os.pipe()
    os.write(write, b".")
    try:
        poller = select.poll()
        poller.register(read, select.POLLIN)
        assert poller.poll(seconds(str(LONGEST)) * 1000)
    finally:
        os.close(read)
        os.close(write)
    with socket.socket() as sock:
        sock.settimeout(LONGEST)


def test_too_little_memory_is_exit_code_1_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def run(wanted: str | None) -> list[str]:
        raise MemoryError

    monkeypatch.setattr("cqnotify.cli.pingpong.device_names", run)
    assert refusal(capsys, 1, "pingpong") == "cqnotify: out of memory\n"


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize(("stream", "args"), [("stdout", ["devices", "-v"]), ("stderr", ["x"])])
def test_a_reader_of_a_pipe_that_does_not_block_gets_all(stream: str, args: list[str]) -> None:
    whole = subprocess.run(command(*args), capture_output=True, timeout=DEADLINE)
    read, write = os.pipe()
    filler = bytes(fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096))
    os.set_blocking(write, False)
    os.write(write, filler)
    streams: Any = {stream: write}
    with started(command(*args), **streams) as process:
        until(lambda: blocks(process, 1 if stream == "stdout" else 2), "its own end blocks")
        assert not os.get_blocking(write), "others share the mode"
        until(lambda: state_of(process) == "S", "it waits for the reader")
        os.close(write)
        with open(read, "rb") as pipe:
            data = pipe.read()[len(filler) :]
        assert process.wait(DEADLINE) == whole.returncode
    assert data == getattr(whole, stream)


def blocks(process: subprocess.Popen[str], fd: int) -> bool:
    found = re.search(r"flags:\s+(\d+)", Path(f"/proc/{process.pid}/fdinfo/{fd}").read_text())
    return found is not None and not int(found[1], 8) & os.O_NONBLOCK


def test_a_socket_that_does_not_block_gets_all(ctx: Context) -> None:
    whole = subprocess.run(command("devices", "-v"), capture_output=True, timeout=DEADLINE)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        with started(command("devices", "-v"), stdout=theirs.fileno()) as process:
            theirs.close()
            data = b"".join(iter(lambda: ours.recv(1000), b""))
            assert process.wait(DEADLINE) == 0
    assert data == whole.stdout


@pytest.mark.parametrize("module", ["argparse", "cqnotify.cli.devices"])
def test_ctrl_c_before_a_command_runs_is_exit_code_130_without_a_word(module: str) -> None:
    """As its modules are imported."""
    program = f"""
import runpy, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["cqnotify", "devices"]
runpy.run_module("cqnotify", run_name="__main__")"""
    done = python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# ---- terminals ------------------------------------------------------------------------------


def on_terminal(argv: list[str]) -> str:
    """What a command prints where all its streams are a terminal."""
    master, slave = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env={**plain, "TERM": "xterm"}
    )
    os.close(slave)
    try:
        shown = read_terminal(master)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()
    return shown


@pytest.mark.usefixtures("ctx")
def test_a_terminal_gets_colours() -> None:
    assert "\033[" in on_terminal(command("devices"))


@pytest.mark.parametrize(
    ("stream", "env", "there"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_which_streams_get_colours(
    stream: io.StringIO, env: dict[str, str], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert colored(stream) == there


@in_lab
def test_progress_is_shown_on_a_terminal_and_cleared_at_the_end() -> None:
    iters = 4000  # enough for a second; asleep in between, since two that spin starve each other
    with server("-e", "-n", iters) as (peer, port):
        shown = on_terminal(command("pingpong", "-e", "-n", iters, "-p", port, "127.0.0.1"))
        assert outcome(peer)[0] == 0
    assert re.search(rf"\rmessages: \d+ of {iters}\033\[K", shown)
    assert "\r\033[Krc client on" in shown


# ---- devices --------------------------------------------------------------------------------


def test_devices_lists_what_there_is(ctx: Context, capsys: Capture) -> None:
    assert main(["devices", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [device["name"] for device in listed] == [device.name for device in devices()]
    device = listed[0]
    assert device["node_guid"] == f"{ctx.query_device().node_guid:016x}"
    (port,) = device["ports"]
    assert port["state"] == ctx.query_port().state.name
    assert port["active_mtu"] == ctx.query_port().active_mtu.bytes
    assert [gid["gid"] for gid in port["gids"]] == [gid_text(e.gid) for e in ctx.query_gid_table()]
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{ctx.name}: ")
    for entry in ctx.query_gid_table():
        line = f"gid {entry.index}: {gid_text(entry.gid)}  {entry.gid_type.name}  {entry.netdev}\n"
        assert line in text


def test_devices_takes_one_device_and_tells_every_attribute(ctx: Context, capsys: Capture) -> None:
    assert main(["devices", "-v", "-d", ctx.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if not line.startswith(" ")]) == 1
    told = {line.split()[0] for line in lines}
    assert told >= {*ctx.query_device()._fields, *ctx.query_port()._fields}
    assert f"    max_cqe                    {ctx.query_device().max_cqe}" in lines


@in_lab
@pytest.mark.parametrize(
    ("args", "listed"),
    [
        (["second"], ["second"]),
        (["second", "first"], ["second", "first"]),
        (["first", "first"], ["first"]),
        (["first", "-d", "second"], ["first", "second"]),
    ],
    ids=" ".join,
)
def test_devices_are_named_with_or_without_the_option(
    args: list[str],
    listed: list[str],
    rdma_device: Device,
    rdma_device2: Device,
    capsys: Capture,
) -> None:
    names = {"first": rdma_device.name, "second": rdma_device2.name}
    assert main(["devices", "--json", *[names.get(word, word) for word in args]]) == 0
    found = [device["name"] for device in json.loads(capsys.readouterr().out)]
    assert found == [names[word] for word in listed]


def test_a_device_that_cannot_be_opened_is_named_and_the_others_are_listed(
    rdma_device: Device,
    rdma_device2: Device,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_context(device: Device) -> Context:
        if device.name == rdma_device2.name:
            raise VerbsError(errno.EACCES, "ibv_open_device: Permission denied")
        return Context(device)

    monkeypatch.setattr("cqnotify.cli.devices.Context", open_context)
    code = main(["devices", "--json", rdma_device.name, rdma_device2.name])
    out, err = capsys.readouterr()
    assert code == 1
    assert [device["name"] for device in json.loads(out)] == [rdma_device.name]
    assert re.fullmatch(rf"cqnotify: {rdma_device2.name}: .*Permission denied.*\n", err)


def test_a_device_that_is_not_there_is_named(ctx: Context, capsys: Capture) -> None:
    said = refusal(capsys, 3, "devices", ctx.name, "nonsense")
    assert said.startswith("cqnotify: there is no device nonsense; there is ")


def test_flags_are_a_number_in_json_and_shown_by_their_names() -> None:
    flags = DeviceCapFlags(0x3 | 1 << 62)
    plain = _plain_value("device_cap_flags", flags)
    assert (type(plain), plain) == (int, flags.value)
    shown = "RESIZE_MAX_WR, BAD_PKEY_CNTR, 0x4000000000000000"
    assert _shown("device_cap_flags", plain) == shown
    assert _shown("port_cap_flags", 1 << 16 | 1 << 26) == "CM_SUP, IP_BASED_GIDS"
    assert _shown("flags", 0) == "none"


@pytest.mark.parametrize("name", SETS)
def test_each_bit_has_a_name_of_its_own(name: str) -> None:
    names = SETS[name]
    assert len(set(names.values())) == len(names)
    assert _shown(name, sum(1 << bit for bit in names)) == ", ".join(names.values())


def test_numbers_that_stand_for_something_are_shown_with_it() -> None:
    assert _shown("phys_state", 5) == "5: LINK_UP"
    assert _shown("active_width", 2) == "2: 4X"
    assert _shown("active_speed", 32) == "32: 25 Gb/s"
    assert _shown("active_speed", 3) == "3"


def switches(process: subprocess.Popen[str]) -> int:
    """How often it has fallen asleep, or been made to pause."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


@in_lab
def test_watch_shows_what_happens_and_sleeps_in_between(netdev: str, rdma_device2: Device) -> None:
    name = rdma_device2.name
    with watching("--json", "--count", 1, "--device", name) as process:
        asleep(process)
        for _ in range(5):  # it may not have gone to sleep for good
            before = switches(process)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            if switches(process) == before:
                break
        else:
            pytest.fail("it is awake again and again")
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1
        ip_link(netdev, "down")
        code, out, err = outcome(process)
    assert (code, err) == (0, "")
    event = json.loads(out)
    assert (event["device"], event["event"], event["port_num"]) == (name, "PORT_ERR", 1)
    assert event["time"].startswith(time.strftime("%Y-%m-%dT"))


@in_lab
def test_watch_watches_all_devices_and_flushes_each_line(netdev: str, rdma_device2: Device) -> None:
    name = rdma_device2.name
    with watching() as process:
        asleep(process)
        ip_link(netdev, "down")
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if name in line).endswith(f"{name} port 1: PORT_ERR\n")
        ip_link(netdev, "up")
        assert next(line for line in lines if "PORT_ACTIVE" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130


@pytest.mark.usefixtures("ctx")
@each_signal
def test_a_signal_ends_watch_without_a_word(number: signal.Signals, code: int) -> None:
    with watching() as process:
        asleep(process)
        process.send_signal(number)
        assert outcome(process) == (code, "", "")


@pytest.mark.usefixtures("ctx")
def test_watch_ends_when_its_reader_goes() -> None:
    read, write = os.pipe()
    with watching(stdout=write) as process:
        os.close(write)
        asleep(process)
        os.close(read)
        assert process.wait(DEADLINE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.usefixtures("ctx")
def test_watch_ends_after_its_time(capsys: Capture) -> None:
    assert main(["watch", "--timeout", "0.2"]) == 0
    assert main(["watch", "--timeout", "0.2", "--count", "99"]) == 1
    assert "of 99 events came within 0.2 s" in capsys.readouterr().err

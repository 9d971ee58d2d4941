# SPDX-License-Identifier: MIT
"""cqnotify pingpong: its ends, its figures and its plots."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_support import (
    LIMIT,
    Capture,
    Terminal,
    both,
    command,
    counted_yields,
    each_signal,
    figures,
    in_lab,
    outcome,
    plan,
    refusal,
    report,
    server,
    started,
    state_of,
    usage_of,
)
from exchange_support import ignore, port_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEADLINE, ip_link, until

from cqnotify import AccessFlags, Context, PortState, QPAddress
from cqnotify.cli import main
from cqnotify.cli._terminal import Progress
from cqnotify.cli.pingpong._end import BLANK, KINDS, open_end
from cqnotify.cli.pingpong._play import Contents
from cqnotify.cli.pingpong._report import WHAT, histogram, percentiles
from cqnotify.context import gid_text
from cqnotify.exchange import listen
from cqnotify.exchange.blocking import exchange_as_server


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("service", KINDS)
def test_our_own_ends_play_with_each_other(service: str, capsys: Capture) -> None:
    options = ["--type", service, "-n", 100, "-s", 600, "-c", "--json", "-r", 32]
    a, b = both(capsys, [*options, "-e"], options)
    ours, theirs = figures(*a), figures(*b)
    unsent = {"mtu": None}
    assert [end | unsent for end in ours["local"]] == theirs["remote"]
    assert ours["remote"] == [end | unsent for end in theirs["local"]]
    assert ours["checked"] >= 100
    assert theirs["checked"] >= 100
    assert ours["sleeps"]
    assert not theirs["sleeps"]


@pytest.mark.usefixtures("conversation")
def test_the_report_has_percentiles_a_histogram_and_events(capsys: Capture) -> None:
    options = ["-n", 50, "-e", "-c"]
    a, b = both(capsys, [*options], [*options])
    for (code, out, err), count in ((a, 49), (b, 50)):
        assert (code, err) == (0, "")
        assert "50 iters in" in out
        assert f"{WHAT}, in usec, {count} times" in out
        assert re.search(r"min +p50 +p90 +p99 +p99\.9 +max\n( +\d+\.\d){6}\n", out)
        bars = re.findall(r"^ +\S+ - +\S+ +(\d+)(?:  █+)?$", out, re.M)
        assert sum(map(int, bars)) == count
        slept = r"^\d+ events, \d\.\d+ per iteration; woken from sleep \d+ times"
        assert re.search(slept, out, re.M)
        assert out.endswith("50 messages checked: every byte is right\n")


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("cpus", [1, 2])
def test_an_end_that_polls_yields_the_only_cpu_and_says_so(
    cpus: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields = counted_yields(monkeypatch, cpus)
    _, (code, out, err) = both(capsys, ["-n", 20], ["-n", 20])
    assert (code, err) == (0, "")
    assert bool(yields) == (cpus == 1)
    assert ("polled, and yielded the only CPU in between: no events" in out) == (cpus == 1)


@pytest.mark.usefixtures("conversation")
def test_a_server_outlives_bad_clients() -> None:
    with server("-n", 10, "--json") as (process, port):
        for data in (b"GET / HTTP/1.1\r\n\r\n" * 8, b"", b"\0" * 52, b"0000:"):
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as sock:
                with contextlib.suppress(OSError):  # it hangs up as soon as it has seen enough
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                assert process.stderr is not None
                assert re.fullmatch(
                    r"cqnotify: 127\.0\.0\.1:\d+ is rejected: .*\n", process.stderr.readline()
                )
        assert main(["pingpong", "-n", "10", "-p", str(port), "127.0.0.1"]) == 0
        assert figures(*outcome(process))["iters"] == 10


@contextlib.contextmanager
def silent_peer(ctx: Context) -> Iterator[tuple[int, Future[QPAddress]]]:
    """A server that gives the address of a QP that is not there: its port, and when it did."""
    nobody = QPAddress(0, 0xFFFFFE, 0, ctx.find_gid().gid)
    with ThreadPoolExecutor(1) as pool, listen(port=0) as listener:
        ends = (listener, nobody, ignore)
        met = pool.submit(exchange_as_server, *ends, timeout=LIMIT)
        yield port_of(listener), met
        met.result(LIMIT)


@pytest.mark.usefixtures("conversation")
@each_signal
@pytest.mark.parametrize("sleeps", [True, False], ids=["asleep", "polling"])
def test_a_signal_ends_a_pingpong_without_a_word(
    ctx: Context, number: signal.Signals, code: int, sleeps: bool
) -> None:
    args = ["--type", "uc", "127.0.0.1", *["-e"] * sleeps]
    with (
        silent_peer(ctx) as (port, met),
        started(command("pingpong", "-p", port, *args)) as process,
    ):
        met.result(LIMIT)
        until(lambda: state_of(process) == ("S" if sleeps else "R"), "it waits")
        process.send_signal(number)
        assert outcome(process) == (code, "", "")


@pytest.mark.usefixtures("conversation")
@each_signal
def test_a_signal_ends_a_server_that_waits_without_a_word(
    number: signal.Signals, code: int
) -> None:
    with server() as (process, _):
        process.send_signal(number)
        assert outcome(process) == (code, "", "")


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("sleeps", [True, False], ids=["asleep", "polling"])
def test_a_lost_message_ends_uc_in_words(ctx: Context, sleeps: bool, capsys: Capture) -> None:
    with silent_peer(ctx) as (port, _):
        args = ["pingpong", "--type", "uc", "--timeout", "1", "-p", str(port), "127.0.0.1"]
        start = time.monotonic()
        said = refusal(capsys, 1, *args, *["-e"] * sleeps)
        assert time.monotonic() - start >= 1
    assert said == (
        "cqnotify: nothing came for 1 s, after 0 of 1000 messages "
        "(UC does not send again what was lost)\n"
    )


@pytest.mark.usefixtures("conversation")
def test_a_peer_that_is_not_there_ends_rc_in_words(ctx: Context, capsys: Capture) -> None:
    with silent_peer(ctx) as (port, _):
        said = refusal(capsys, 1, "pingpong", "-e", "-p", str(port), "127.0.0.1")
    assert re.fullmatch(r"cqnotify: .*transport retry counter exceeded.*\n", said)


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--port", "0"], "no client came within 0.3 s"),
        (["--port", "1", "127.0.0.1"], "127.0.0.1 port 1 did not answer within 0.3 s"),
        (["nobody.invalid"], "the exchange of addresses failed: .*"),
        (["--bind", "192.0.2.1"], r"cannot listen on 192.0.2.1 port \d+: Cannot assign .*"),
    ],
    ids=["no client", "no server", "no such name", "no such address"],
)
def test_who_has_no_peer_says_so(args: list[str], words: str, capsys: Capture) -> None:
    said = refusal(capsys, 1, "pingpong", "--timeout", "0.3", *args)
    assert re.fullmatch(f"cqnotify: {words}", said.splitlines()[-1])


@pytest.mark.usefixtures("conversation")
def test_a_client_without_a_server_says_soon_that_it_waits_and_for_how_long() -> None:
    with started(command("pingpong", "-p", 1, "127.0.0.1")) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == (
            "cqnotify: waiting for 127.0.0.1 port 1 to answer, for 60 s at most "
            "(--timeout; Ctrl-C ends it)\n"
        )
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert outcome(process) == (130, "", "")


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("options", "client_options", "words"),
    [
        (["-s", 128], ["-s", 64], "the peer sends 64 bytes, not 128: give both the same --size"),
        (
            ["-c"],
            [],
            "message 1 came with wrong bytes: byte 1 is 0x02, not 0x03 or 0x7b "
            "(--chk is for both ends)",
        ),
    ],
    ids=["size", "check"],
)
def test_ends_that_do_not_fit_say_so(
    capsys: Capture, options: list[object], client_options: list[object], words: str
) -> None:
    common: list[object] = ["--type", "ud", "-n", 10]
    server_said, (code, out, err) = both(
        capsys, [*common, *options], [*common, *client_options, "--timeout", 5]
    )
    assert server_said == (1, "", f"cqnotify: {words}\n")
    assert (code, out) == (1, "")
    assert "nothing came for 5 s" in err


@pytest.mark.usefixtures("conversation")
def test_a_message_that_does_not_fit_the_peers_receive_raises_the_question(capsys: Capture) -> None:
    ends = both(capsys, ["-s", 64, "-n", 10], ["-s", 128, "-n", 10])
    for code, out, err in ends:
        assert (code, out) == (1, "")
        assert re.fullmatch(
            r"cqnotify: work request \d+ on QP \d+ failed: .*; "
            r"do both ends have the same --type and --size\?\n",
            err,
        )


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("service", ["rc", "ud"])
def test_gids_of_different_kinds_say_so(service: str, ctx: Context, capsys: Capture) -> None:
    gids = [entry.gid for entry in ctx.query_gid_table()]
    local, mapped = (
        next(n for n, gid in enumerate(gids) if bool(gid.ipv4_mapped) == kind)
        for kind in (False, True)
    )
    (code, out, err), client = both(
        capsys, ["--type", service, "-g", mapped], ["--type", service, "-g", local]
    )
    ours, theirs = gid_text(gids[mapped]), gid_text(gids[local])
    assert (code, out) == (1, "")
    assert err == (
        f"cqnotify: our GID is {ours}, the peer's is {theirs}: "
        "both have to be of IPv4, or neither; choose by -g\n"
    )
    assert client[:2] == (1, "")


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("args", "option", "where"),
    [
        ("conformance", "--ib-port", ""),
        ("pingpong", "--ib-port", ""),
        ("pingpong", "--rx-depth", ""),
        ("pingpong", "--size", " port 1"),
        ("pingpong --type ud", "--size", " port 1"),
        ("pingpong", "--mtu", " port 1"),
        ("latency", "--ib-port", ""),
        ("latency", "--size", " port 1"),
        ("latency", "--mtu", " port 1"),
    ],
)
@in_lab
def test_what_the_device_refuses_is_refused_by_the_options_name(
    ctx: Context, args: str, option: str, where: str, capsys: Capture
) -> None:
    attr, port = ctx.query_device(), ctx.query_port()
    limits = {
        "--ib-port": attr.phys_port_cnt,
        "--rx-depth": min(attr.max_qp_wr, attr.max_cqe - 1),
        "--size": 1024 if "ud" in args else port.max_msg_sz,
        "--mtu": 1024,
    }
    limit = limits[option]
    value = 2048 if option == "--mtu" else limit + 1
    said = usage_of(capsys, *args.split(), option, str(value))
    assert said == f"cqnotify: {option} is {value}: the limit of {ctx.name}{where} is {limit}\n"


@pytest.mark.usefixtures("conversation")
@in_lab
@pytest.mark.parametrize("name", ["pingpong", "conformance"])
def test_a_port_that_is_down_is_nothing_to_run_on(
    name: str, netdev: str, ctx2: Context, capsys: Capture
) -> None:
    ip_link(netdev, "down")
    until(lambda: ctx2.query_port().state != PortState.ACTIVE, "the port is down")
    said = refusal(capsys, 3, name, "-d", ctx2.name)
    assert re.fullmatch(f"cqnotify: {ctx2.name} port 1 is .*, not ACTIVE\n", said)


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("name", ["pingpong", "conformance"])
def test_a_gid_that_is_not_there_is_one_line(name: str, capsys: Capture) -> None:
    said = refusal(capsys, 1, name, "-g", "200")
    assert re.fullmatch("cqnotify: no GID at index 200; .* has .*\n", said)


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("service", KINDS)
def test_memory_is_open_to_nobody(service: str) -> None:
    """Receives may write to theirs, sends only read, and a peer may do nothing by itself."""
    for host in (None, "127.0.0.1"):
        with open_end(plan(service=service, host=host)) as end:
            assert end.recv_mr.access == AccessFlags.LOCAL_WRITE
            assert host is None or end.send_mr.access == 0
            for endpoint in end.endpoints:
                assert service == "ud" or endpoint.qp.query().qp_access_flags == 0


def test_messages_differ_from_each_other_and_satisfy_rdma_core() -> None:
    contents = Contents(9000, "rc")
    messages = [contents.of(number) for number in range(251)]
    assert len(set(messages)) == 251
    for message in (*messages, contents.rdma_core):
        assert len(message) == 9000
        assert [i for i in range(9000) if not message[i]] == [0, 4096, 8192]
    assert set(contents.rdma_core) == {0, 0x7B}


def test_messages_over_an_srq_are_all_alike_and_never_blank() -> None:
    contents = Contents(9000, "srq")
    assert contents.of(0) == contents.of(1)
    assert BLANK[0] not in contents.of(0) + contents.rdma_core


def test_percentiles_are_latencies_that_were_measured() -> None:
    latencies = array("q", [n * 1000 for n in range(1000, 0, -1)])
    assert percentiles(latencies) == {
        **{"min": 1.0, "p50": 500.0, "p90": 900.0, "p99": 990.0, "p99_9": 999.0, "max": 1000.0}
    }
    assert set(percentiles(array("q", [7000])).values()) == {7.0}
    assert set(percentiles(array("q")).values()) == {None}


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=50))
def test_a_histogram_has_every_latency_in_its_bucket(latencies: list[int]) -> None:
    buckets = histogram(array("q", latencies))
    assert [b.samples for b in buckets] == [
        sum(b.start <= latency / 1e3 < b.end for latency in latencies) for b in buckets
    ]
    assert sum(b.samples for b in buckets) == len(latencies)
    assert buckets[0].samples
    assert buckets[-1].samples
    assert [b.end for b in buckets[:-1]] == [b.start for b in buckets[1:]]


def test_a_server_of_a_single_message_measures_no_latency() -> None:
    alone = report([], iters=1)
    assert json.loads(json.dumps(alone.as_dict()))["latency"]["p50"] is None
    assert "round trip" not in alone.as_text()


def test_bars_are_plain_where_the_terminal_has_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    text = report([1000, 2000, 2000]).as_text()
    assert re.search("^ +1 - +1.5  1  #+$", text, re.M)
    assert text.isascii()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_figures_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = report([1000, 2000, 2000, 30_000_000]).as_text()
    bars = re.findall(r"^ +\S+ - +\S+ .*", text, re.M)
    assert max(map(len, bars)) == min(columns, 100)
    (head,) = re.findall(r"^ +min .*", text, re.M)
    assert len(head) <= columns


def test_progress_is_shown_in_the_second_second_and_then_at_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("messages", 9) as progress:
        for tick in range(9):
            progress.show(tick)
            now += 0.3
    lines = terminal.getvalue().split("\r")
    assert lines == ["", *(f"messages: {n} of 9\033[K" for n in range(4, 9)), "\033[K"]


# ---- plots ----------------------------------------------------------------------------------


def test_without_matplotlib_it_says_so_before_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    picture = tmp_path / "latency.svg"
    said = refusal(capsys, 3, "pingpong", "--plot", str(picture), "--device", "nonsense")
    assert re.fullmatch(r"cqnotify: --plot needs matplotlib.*pip install cqnotify\[plot\]\n", said)
    assert not picture.exists()


def test_a_plot_that_cannot_be_written_is_wrong_usage(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "folder.svg").mkdir()
    for path in (tmp_path / "folder.svg", tmp_path / "nowhere" / "a.svg"):
        assert "cannot be written" in usage_of(capsys, "pingpong", "--plot", str(path))


def test_a_plot_is_a_picture_with_the_percentiles(tmp_path: Path) -> None:
    from cqnotify.cli.pingpong._report import save_plot

    figures = report([n * 1000 for n in range(10, 1000)])
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    save_plot(figures, str(svg))
    save_plot(figures, str(png))
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert all(
        name in svg.read_text()
        for name in ("50 %: 504.0 usec", "99.9 %: 999.0 usec", "rc ping-pong")
    )
    assert png.read_bytes().startswith(b"\x89PNG")

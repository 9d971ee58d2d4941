# SPDX-License-Identifier: MIT
"""cqnotify latency: each operation, asleep and polling. Of it and of bandwidth: ends that do not
fit, and peers that die."""

from __future__ import annotations

import os
import re
import signal
import statistics
from array import array
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_support import (
    Capture,
    both,
    counted_yields,
    each_signal,
    figures,
    in_lab,
    measured,
    measuring,
    outcome,
    refusal,
    server,
    started,
    state_of,
    usage_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import address_of, is_iwarp, until

from cqnotify import AccessFlags, Context, QPAddress
from cqnotify.cli.perf import _run
from cqnotify.cli.perf._description import MAGIC, swap_descriptions
from cqnotify.cli.perf._end import PerfEnd, open_end
from cqnotify.cli.perf._plan import Plan
from cqnotify.cli.perf._run import begin
from cqnotify.cli.perf._statistics import FIGURES, latencies
from cqnotify.exchange.blocking import exchange_as_client

OPS = ("send", "write", "read", "atomic")
ANSWERED = ("send", "write")  # by the server's program, and not by its device


def plan(**options: Any) -> Plan:
    defaults: dict[str, Any] = {
        **{"name": "latency", "op": "send", "host": None, "port": 0, "bind": "127.0.0.1"},
        **{
            "rdma_cm": False,
            "perftest": False,
            "device": None,
            "port_num": 1,
            "gid_index": None,
            "path_mtu": 1024,
        },
        **{"sl": 0, "sizes": (64,), "iters": 10, "duration": None, "num_qp": 1, "tx_depth": 4},
        **{"rx_depth": 4, "bidirectional": False, "events": True, "immediate": False},
        **{"inline": 0, "timeout": 60.0},
    }
    return Plan(**{**defaults, **options})


def results(capsys: Capture, *args: object, host: str = "127.0.0.1") -> tuple[Any, Any]:
    return measured(capsys, "latency", *args, host=host)


def check_figures(ours: dict[str, Any], theirs: dict[str, Any], sizes: list[int], n: int) -> None:
    assert [one["size"] for one in theirs["results"]] == sizes
    for one, other in zip(ours["results"], theirs["results"], strict=True):
        assert one["iterations"] == other["iterations"] == n
        assert {name: one[name] for name in FIGURES} == {name: other[name] for name in FIGURES}
        assert 0 < one["t_min"] <= one["t_typical"] <= one["p99"] <= one["p99_9"] <= one["t_max"]
        assert one["t_min"] <= one["t_avg"] <= one["t_max"]
        assert (one["local"], one["remote"]) == (other["remote"], other["local"])


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("op", OPS)
def test_an_end_that_sleeps_has_events(op: str, ctx: Context, capsys: Capture) -> None:
    n = 200
    ours, theirs = results(capsys, "--op", op, "-n", n, "-e")
    check_figures(ours, theirs, [8 if op == "atomic" else 2], n)
    (one,) = theirs["results"]
    most = n + n // 32 + 1  # one for each message, and for each batch of those that are answered
    if op in ANSWERED:
        # Where both share a CPU, the answer to one of them may always be there when it looks.
        events = one["local"]["events"], one["remote"]["events"]
        assert sum(events) > 0
        assert max(events) <= most
    else:
        assert one["local"]["events"] <= n  # software may have completed it when it was posted
        assert one["remote"]["events"] == 0
    assert theirs["write_with_imm"] == (op == "write")
    assert theirs["device"] == ctx.name
    assert theirs["peer"] == {"device": ctx.name, "sleeps": True, "yields": False}
    assert theirs["mtu"] == 1024
    assert "half the round trip" in theirs["what"] or op not in ANSWERED


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("op", OPS)
def test_an_end_that_polls_has_none(op: str, capsys: Capture) -> None:
    ours, theirs = results(capsys, "--op", op, "-n", 20)
    check_figures(ours, theirs, [8 if op == "atomic" else 2], 20)
    (one,) = theirs["results"]
    assert one["local"]["events"] == one["remote"]["events"] == 0
    assert not theirs["sleeps"]


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("op", ANSWERED)
def test_an_end_that_polls_yields_the_only_cpu(
    op: str, cpus: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the peer, and a device in software, would run at the next tick of the scheduler."""
    yields = counted_yields(monkeypatch, cpus)
    theirs = results(capsys, "--op", op, "-n", 20)[1]
    assert theirs["yields"] == (cpus == 1)
    assert bool(yields) == (cpus == 1)


@pytest.mark.usefixtures("conversation")
def test_the_title_says_who_yields(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    _, (code, out, _) = both(capsys, ["-n", 5, "-e"], ["-n", 5], name="latency")
    assert code == 0
    assert ": polls and yields its only CPU here, sleeps there; " in out.splitlines()[0]


@pytest.mark.usefixtures("conversation")
def test_the_cpu_time_of_a_run_of_a_few_ticks_is_not_known(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "MEASURABLE", 1e9)
    theirs = results(capsys, "-n", 5)[1]
    assert theirs["results"][0]["local"]["cpu_percent"] is None
    monkeypatch.setattr(_run, "MEASURABLE", 0)
    _, (code, out, _) = both(capsys, ["-n", 5], ["-n", 5], name="latency")
    assert code == 0
    assert re.search(r" \d+\.\d +(-|\d+\.\d)$", out, re.M), "ours; the server's run was short"


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("op", "connection", "sleeps"),
    [("send", "UC", False), ("write", "UC", True), ("send", "UD", True)],
)
def test_services_that_do_not_send_again(
    op: str, connection: str, sleeps: bool, capsys: Capture
) -> None:
    args = ("--op", op, "-c", connection, "-n", 100, "-I", 8, *["-e"] * sleeps)
    ours, theirs = results(capsys, *args)
    check_figures(ours, theirs, [2], 100)
    assert ours["connection"] == theirs["connection"] == connection
    assert ours["mtu"] == theirs["mtu"] == 1024
    (one,) = theirs["results"]
    assert (one["local"]["events"] + one["remote"]["events"] > 0) == sleeps


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("mtu", [256, 1024])
def test_all_sizes_of_ud_end_with_the_mtu(mtu: int, capsys: Capture) -> None:
    sizes = [1 << power for power in range(1, mtu.bit_length())]
    check_figures(*results(capsys, "-c", "UD", "-a", "-n", 3, "-m", mtu), sizes, 3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--op", "read", "-c", "UC"], "--connection UC does not go with --op read, only RC"),
        (["--op", "atomic", "-c", "UD"], "--connection UD does not go with --op atomic, only RC"),
        (
            ["--op", "write", "-c", "UD"],
            "--connection UD does not go with --op write, only RC and UC",
        ),
        (
            ["-R", "-c", "UC"],
            "--connection UC does not go with --rdma_cm, which connects no UC QPs",
        ),
        (
            ["-c", "UD", "-s", 1025],
            "--size is 1025: the limit of UD is the MTU, 1024 bytes (--mtu)",
        ),
    ],
)
def test_what_a_service_cannot_do_is_refused(
    args: list[object], words: str, capsys: Capture
) -> None:
    assert usage_of(capsys, "latency", *map(str, args)) == f"cqnotify: {words}\n"


@pytest.mark.usefixtures("conversation")
def test_one_end_may_sleep_and_the_other_poll_for_a_time_and_inline(capsys: Capture) -> None:
    options = ["-D", 0.5, "-I", 16, "-s", 16, "--json"]
    ends = both(capsys, [*options, "-e"], options, name="latency")
    ours, theirs = (figures(*end) for end in ends)
    n = theirs["results"][0]["iterations"]
    check_figures(ours, theirs, [16], n)
    assert n >= 32
    assert n % 32 == 0
    assert (ours["sleeps"], theirs["sleeps"]) == (True, False)


@pytest.mark.usefixtures("conversation")
def test_the_table_has_the_columns_of_perftest(tmp_path: Path, capsys: Capture) -> None:
    picture = tmp_path / "a.svg"
    options: list[object] = ["-a", "-n", 1, "-e", "--op", "write"]
    ends = both(capsys, options, [*options, "--plot", picture], name="latency")
    for code, out, err in ends:
        assert (code, err) == (0, "")
        assert re.search(
            r"^ #bytes #iterations +t_min\[usec\] +t_max\[usec\] +t_typical\[usec\] +t_avg\[usec\] "
            r"+t_stdev\[usec\] +99% percentile\[usec\] +99\.9% percentile\[usec\] ",
            out,
            re.M,
        )
        rows = re.findall(r"^ (\d+) +1((?: +\d+\.\d+){7}(?: +(?:-|\d+\.\d)){2})$", out, re.M)
        assert [int(size) for size, _ in rows] == [1 << power for power in range(1, 24)]
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "99.9" in picture.read_text()


@pytest.mark.parametrize("op", ["send", "read"])
def test_ends_meet_by_rdma_cm(op: str, ctx: Context, capsys: Capture) -> None:
    ours, theirs = results(capsys, "-R", "--op", op, "-n", 100, "-e", host=address_of(ctx))
    check_figures(ours, theirs, [2], 100)
    assert ours["rdma_cm"]
    assert theirs["device"] == ctx.name


def test_ud_takes_the_path_of_rdma_cm(ctx: Context, capsys: Capture) -> None:
    args, host = ["-R", "-c", "UD", "-e"], address_of(ctx)
    if is_iwarp(ctx):
        with server(*args, name="latency") as (_, port):
            said = refusal(capsys, 3, "latency", *args, "-p", str(port), host)
            words = "an iWARP device, which has no UD: --connection RC is its only one"
            assert said == f"cqnotify: {ctx.name} is {words}\n"
        return
    mtu = getattr(ctx.query_port().active_mtu, "bytes", 0)
    sizes = [1 << power for power in range(1, mtu.bit_length())]
    ours, theirs = results(capsys, *args, "-a", "-n", 20, host=host)
    check_figures(ours, theirs, sizes, 20)
    assert theirs["mtu"] == mtu


def test_by_rdma_cm_what_a_device_lacks_is_said_before(ctx: Context, capsys: Capture) -> None:
    if not is_iwarp(ctx):
        for op, size in (("write", 2), ("atomic", 8)):
            args = ("-R", "--op", op, "-n", 20, "-e")
            check_figures(*results(capsys, *args, host=address_of(ctx)), [size], 20)
        return
    for args, words in (
        (["--op", "write", "-e"], "no writes with immediate data, which .* need"),
        (["--op", "atomic"], "has no atomic operations"),
    ):
        with server("-R", *args, name="latency") as (process, port):
            said = refusal(capsys, 3, "latency", "-R", *args, "-p", str(port), address_of(ctx))
            assert re.search(words, said)
            process.kill()


# ---- peers that do not fit, or die ----------------------------------------------------------


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("name", "ours", "theirs", "our_words", "their_words"),
    [
        ("latency", ["-s", 3, "-n", 9], ["-s", 4], "--size 3 and --iters 9",
         "--size 4 and --iters 1000"),
        ("latency", ["--op", "write"], ["--op", "write", "-e"], "no --write_with_imm",
         "--write_with_imm"),
        ("latency", ["--op", "read"], ["--op", "atomic"], "`cqnotify latency --op read`",
         "`cqnotify latency --op atomic`"),
        ("latency", ["-D", 2], ["-a"], "--size 2 and no --iters and --duration 2.0",
         "--all and --iters 1000 and no --duration"),
        ("bandwidth", ["-t", 64], ["-t", 32, "-b"], "--tx-depth 64 and no --bidirectional",
         "--tx-depth 32 and --bidirectional"),
        ("bandwidth", ["-q", 2, "-r", 9], ["-q", 3, "-r", 8], "--qp 2 and --rx-depth 9",
         "--qp 3 and --rx-depth 8"),
    ],
    ids=["size", "imm", "op", "all", "depth", "QPs"],
)  # fmt: skip
def test_ends_that_do_not_fit_both_say_so(
    name: str,
    ours: list[object],
    theirs: list[object],
    our_words: str,
    their_words: str,
    capsys: Capture,
) -> None:
    ends = both(capsys, ours, theirs, name=name)
    for end, has, have in zip(
        ends, (their_words, our_words), (our_words, their_words), strict=True
    ):
        said = f"cqnotify: the peer has {has}, we have {have}: give both the same\n"
        assert end == (1, "", said)


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("name", "args", "victim"),
    [
        ("latency", ["--op", "send", "-e"], "server"),
        ("latency", ["--op", "read"], "server"),
        ("latency", ["--op", "read", "-e"], "client"),
        ("bandwidth", ["--op", "send", "-e", "-s", 1024], "client"),
        ("bandwidth", ["--op", "write", "-e", "-s", 1024], "server"),
        ("bandwidth", ["-c", "UD", "-s", 1024], "server"),
    ],
)
def test_an_end_whose_peer_dies_says_so(name: str, args: list[object], victim: str) -> None:
    with measuring(name, *args) as (us, client):
        dies, other = (client, us) if victim == "client" else (us, client)
        dies.kill()
        assert outcome(other) == (1, "", "cqnotify: the peer has gone\n")


@pytest.mark.usefixtures("conversation")
def test_a_client_whose_server_stands_still_says_so() -> None:
    patience = ("--timeout", 6)  # in which a busy machine's server answers
    with measuring("latency", "-e", *patience) as (us, client):
        us.send_signal(signal.SIGSTOP)
        code, out, err = outcome(client)
    assert (code, out) == (1, "")
    # The second is said if the server was stopped before it was ready to begin.
    assert err in {
        "cqnotify: nothing came for 6 s\n",
        "cqnotify: the peer sent nothing for 6 s\n",
    }


@pytest.mark.usefixtures("conversation")
def test_a_message_that_is_lost_ends_it_in_words(ctx: Context) -> None:
    lost = "nothing came for 4 s: UD does not send again what was lost"
    common = ["-c", "UD", "-n", 100, "--timeout", 4]
    with (
        server(*common, "-e", name="latency") as (us, port),
        open_end(
            plan(
                host="127.0.0.1",
                port=port,
                connection="UD",
                iters=100,
                sizes=(2,),
                tx_depth=64,
                rx_depth=64,
            )
        ) as end,
    ):
        end.connect_control(_address_of_server(end, port))
        swap_descriptions(end)
        end.connect()
        begin(end, 2)  # and no message: it is lost
        assert outcome(us)[::2] == (1, f"cqnotify: {lost}\n")


def _address_of_server(end: PerfEnd, port: int) -> QPAddress:
    remote, payload = exchange_as_client("127.0.0.1", port, end.control_address, payload=MAGIC)
    assert payload == MAGIC
    return remote


@pytest.mark.usefixtures("conversation")
@each_signal
@pytest.mark.parametrize("sleeps", [True, False], ids=["asleep", "polling"])
def test_a_signal_ends_it_without_a_word(number: signal.Signals, code: int, sleeps: bool) -> None:
    with measuring("latency", "--op", "read", *["-e"] * sleeps) as (us, client):
        until(lambda: state_of(us) == "S", "the server, which has nothing to do, sleeps")
        client.send_signal(number)
        us.send_signal(number)
        assert outcome(client) == (code, "", "")
        assert outcome(us) == (code, "", "")


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("name", ["latency", "pingpong"])
def test_a_client_of_another_host_names_what_its_server_needs(name: str, capsys: Capture) -> None:
    said = refusal(capsys, 1, name, "--timeout", "0.3", "-p", "1", "10.99.0.1")
    assert said == (
        "cqnotify: 10.99.0.1 port 1 did not answer within 0.3 s; `cqnotify` there listens for "
        "other hosts only with --bind (0.0.0.0 or ::)\n"
    )
    said = refusal(capsys, 1, name, "--timeout", "0.3", "-p", "1", "127.0.0.1")
    assert said == "cqnotify: 127.0.0.1 port 1 did not answer within 0.3 s\n"


@in_lab
def test_a_server_of_another_kind_by_rdma_cm_is_named(
    ctx: Context, capsys: Capture, free_port: int
) -> None:
    """rping takes any client."""
    address = address_of(ctx)
    with started(["rping", "-s", "-v", "-a", address, "-p", str(free_port)]):
        said = refusal(capsys, 1, "latency", "-R", "-p", str(free_port), address)
    assert said == (
        f"cqnotify: {address} port {free_port}: the peer is another program, or of another version "
        "of cqnotify, such as rping: does `cqnotify latency -R` run there?\n"
    )


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("op", "access"),
    [
        ("send", AccessFlags(0)),
        ("write", AccessFlags.REMOTE_WRITE),
        ("read", AccessFlags.REMOTE_READ),
        ("atomic", AccessFlags.REMOTE_ATOMIC),
    ],
)
def test_memory_is_open_for_what_is_measured_alone(op: str, access: AccessFlags) -> None:
    with open_end(plan(op=op)) as end:
        assert end.mr.access == access | AccessFlags.LOCAL_WRITE
        assert end.qps[0].query().qp_access_flags == access


# ---- the figures ----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=2000), st.sampled_from([1, 2]))
def test_figures_are_those_of_statistics(samples: list[int], parts: int) -> None:
    found = latencies(array("q", samples), parts)
    unit = 1000 * parts
    assert found["t_min"] * unit == pytest.approx(min(samples))
    assert found["t_max"] * unit == pytest.approx(max(samples))
    assert found["t_typical"] * unit == pytest.approx(statistics.median(samples))
    assert found["t_avg"] * unit == pytest.approx(statistics.fmean(samples))
    assert found["t_stdev"] * unit == pytest.approx(statistics.pstdev(samples), abs=1e-3)
    for name, part in (("p99", 0.99), ("p99_9", 0.999)):
        at = found[name] * unit
        assert sum(one <= at + 0.5 for one in samples) >= part * len(samples)
        assert sum(one < at - 0.5 for one in samples) < part * len(samples)

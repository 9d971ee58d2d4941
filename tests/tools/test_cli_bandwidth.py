# SPDX-License-Identifier: MIT
"""cqnotify bandwidth: each operation, one way and both."""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import pytest
from cli_support import (
    Capture,
    both,
    counted_yields,
    figures,
    measured,
    usage_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import address_of

from cqnotify import Context
from cqnotify.cli.perf._statistics import STRETCHES, fastest

NAME = "bandwidth"


def results(capsys: Capture, *args: object, host: str = "127.0.0.1") -> tuple[Any, Any]:
    return measured(capsys, NAME, *args, host=host)


def check_one_way(ours: dict[str, Any], theirs: dict[str, Any], n: int) -> None:
    """Both ends have the same figures of each size: those of the client's n messages."""
    for one, other in zip(ours["results"], theirs["results"], strict=True):
        assert one["sent"] is other["received"] is None
        assert one["received"] == other["sent"]
        check_rate(other["sent"], other["size"], n)
        assert (one["local"], one["remote"]) == (other["remote"], other["local"])
        assert {k: other[k] for k in other["sent"]} == other["sent"]


def check_rate(rate: dict[str, Any], size: int, n: int) -> None:
    assert rate["iterations"] == n
    assert rate["bytes_per_second"] == pytest.approx(rate["messages_per_second"] * size)
    assert 0 < rate["bytes_per_second"] <= rate["peak_bytes_per_second"] * (1 + 1e-9)


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_an_end_that_sleeps_has_events(op: str, capsys: Capture) -> None:
    ours, theirs = results(capsys, "--op", op, "-n", 2000, "-s", 4096, "-e", "-q", 2)
    check_one_way(ours, theirs, 4000)
    assert theirs["num_qp"] == 2
    (one,) = theirs["results"]
    assert one["local"]["events"] > 0
    assert (one["remote"]["events"] > 0) == (op == "send")
    assert theirs["sleeps"]


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_both_directions_at_once_and_polling(op: str, capsys: Capture) -> None:
    ours, theirs = results(capsys, "--op", op, "-n", 333, "-s", 1000, "-b", "-t", 20, "-r", 30)
    for one, other in zip(ours["results"], theirs["results"], strict=True):
        assert one["received"] == other["sent"]
        assert one["sent"] == other["received"]
        for rate in (one["sent"], other["sent"]):
            check_rate(rate, 1000, 333)
        check_rate(one, 1000, 666)
        total = one["sent"]["bytes_per_second"] + one["received"]["bytes_per_second"]
        assert one["bytes_per_second"] == pytest.approx(total)
        assert one["local"]["events"] == other["local"]["events"] == 0


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("cpus", [1, 2])
def test_an_end_that_polls_yields_the_only_cpu(
    cpus: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields = counted_yields(monkeypatch, cpus)
    theirs = results(capsys, "-n", 333, "-s", 1000, "-b", "-t", 1)[1]
    assert theirs["yields"] == (cpus == 1)
    assert bool(yields) == (cpus == 1)


@pytest.mark.usefixtures("conversation")
def test_both_directions_at_once_asleep_for_a_time(capsys: Capture) -> None:
    ours, theirs = results(capsys, "-D", 0.5, "-s", 512, "-b", "-e", "-q", 3)
    for one, other in zip(ours["results"], theirs["results"], strict=True):
        assert one["received"] == other["sent"]
        assert one["sent"] == other["received"]
        assert one["sent"]["iterations"] > 0
        assert other["sent"]["iterations"] > 0
        assert one["local"]["events"] > 0
        assert other["local"]["events"] > 0


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("sleeps", [True, False], ids=["asleep", "polling"])
@pytest.mark.parametrize(("op", "connection"), [("send", "UD"), ("send", "UC"), ("write", "UC")])
def test_services_that_do_not_send_again(
    op: str, connection: str, sleeps: bool, capsys: Capture
) -> None:
    args = ["--op", op, "-c", connection, "-n", 300, "-s", 1024, "-q", 2, "-b", *["-e"] * sleeps]
    ours, theirs = results(capsys, *args)
    (one,), (other,) = ours["results"], theirs["results"]
    assert one["received"] == other["sent"]
    assert one["sent"] == other["received"]
    check_rate(one["sent"], 1024, 600)
    for rate in (one["sent"], one["received"]):  # who writes cannot tell
        assert rate["lost"] is None if op == "write" else 0 <= rate["lost"] <= 600


@pytest.mark.usefixtures("conversation")
def test_messages_that_are_lost_are_counted(capsys: Capture) -> None:
    common = ["-c", "UD", "-n", 3000, "-t", 128, "-r", 1]  # there is a receive for few of them
    (code, out, err), ours = both(capsys, common, [*common, "--json"], name=NAME)
    assert (code, err) == (0, "")
    lost = figures(*ours)["results"][0]["sent"]["lost"]
    assert 0 < lost < 3000
    assert re.search(rf"^ 1024 .* {lost}$", out, re.M)


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_any_depth_will_do(depth: int, capsys: Capture) -> None:
    args = ("--op", "write", "--write_with_imm", "-n", 23, "-t", depth, "-r", depth, "-e")
    check_one_way(*results(capsys, *args), 23)


@pytest.mark.usefixtures("conversation")
def test_the_table_has_the_columns_of_perftest(tmp_path: Path, capsys: Capture) -> None:
    picture = tmp_path / "a.png"
    common = ["--op", "write", "-a", "-n", 1, "-e"]
    ends = both(capsys, common, [*common, "--report_gbits", "--plot", picture], name=NAME)
    for (code, out, err), unit in zip(ends, (r"MiB/sec", r"Gb/sec"), strict=True):
        assert (code, err) == (0, "")
        assert re.search(
            rf"^ #bytes +#iterations +BW peak\[{unit}\] +BW average\[{unit}\] +MsgRate\[Mpps\] ",
            out,
            re.M,
        )
        rows = re.findall(r"^ (\d+) +1((?: +\d+\.\d+){3}(?: +(?:-|\d+\.\d)){2})$", out, re.M)
        assert [int(size) for size, _ in rows] == [1 << power for power in range(1, 24)]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("op", ["send", "write", "read"])
@pytest.mark.parametrize("ways", [1, 2])
def test_ends_meet_by_rdma_cm(op: str, ways: int, ctx: Context, capsys: Capture) -> None:
    args = ["-R", "--op", op, "-n", 100, "-s", 2000, "-e", "-q", 3, *["-b"] * (ways - 1)]
    ours, theirs = results(capsys, *args, host=address_of(ctx))
    if ways == 1:
        check_one_way(ours, theirs, 300)
    for end in (ours, theirs):
        assert end["results"][0]["iterations"] == 300 * ways
        assert end["rdma_cm"]


@pytest.mark.usefixtures("conversation")
def test_depths_that_the_device_does_not_have_are_refused(ctx: Context, capsys: Capture) -> None:
    attr = ctx.query_device()
    limit = min(attr.max_qp_wr, attr.max_cqe // 2)
    said = usage_of(capsys, NAME, "-q", "2", "--rx-depth", str(limit + 1))
    assert said == (f"cqnotify: --rx-depth is {limit + 1}: the limit of {ctx.name} is {limit}\n")


# ---- the figures ----------------------------------------------------------------------------

BATCHES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 90), st.integers(1, 32)), min_size=1, max_size=40
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(BATCHES)
def test_the_fastest_stretch_is_the_best_of_all(batches: list[tuple[int, int, int]]) -> None:
    posted, completed, messages = array("q"), array("q"), array("q")
    now = done = 0
    for gap, lasts, count in batches:
        now += gap
        done = max(done, now + lasts)
        posted.append(now)
        completed.append(done)
        messages.append(count)
    stretches = [
        sum(messages[i : j + 1]) / (completed[j] - posted[i])
        for i in range(len(batches))
        for j in range(i, len(batches))
    ]
    assert fastest(posted, completed, messages) == pytest.approx(max(stretches))


def test_of_a_long_run_many_batches_are_taken_as_one() -> None:
    n = 10 * STRETCHES + 7
    posted = array("q", range(0, 100 * n, 100))
    completed = array("q", range(100, 100 * n + 100, 100))
    found = fastest(posted, completed, array("q", [32] * n))
    assert found == pytest.approx(0.32)

# SPDX-License-Identifier: MIT
"""The pictures of --plot: what is in them, and that nothing in them is cut or hidden."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_support import report
from matplotlib.figure import Figure

from cqnotify.cli.perf import _bandwidth_report, _latency_report
from cqnotify.cli.perf._bandwidth import Bandwidth, Rate
from cqnotify.cli.perf._latency import Latency
from cqnotify.cli.perf._statistics import latencies
from cqnotify.cli.pingpong import _report

SHOWN = 600  # pixels, of the width in which a picture has to be legible
SMALLEST = 11  # pixels of a letter there, from the top of a "d" to the bottom of a "p"
SIZES = [1 << power for power in range(1, 24)]


def end(name: str, **options: Any) -> Any:
    """An end as far as a picture needs it, with the longest of titles."""
    plan = {"name": name, "op": "send", "client": True, "events": False, "port_num": 1}
    plan |= {"num_qp": 1, "loses": True, "connection": "UD", "bidirectional": False, **options}
    waits = {"events": False, "yields": True}
    return SimpleNamespace(plan=SimpleNamespace(**plan), device="mlx5_0", remote=waits, yields=True)


def times(n: int, low: int, longest: int) -> array[int]:
    rng = random.Random(n)
    return array("q", [*(int(low * (1 + rng.expovariate(6))) for _ in range(n - 1)), longest])


def latency(size: int, n: int, longest: int = 60_000_000, *, server: bool = False) -> Latency:
    samples = times(n, 60_000, longest)
    kept = array("q") if server else samples
    return Latency(size, n, latencies(samples, 2), {}, {}, kept)


def bandwidth(size: int, *, both: bool = False) -> Bandwidth:
    rate = Rate(500, 1e9 / (size + 65536), 1.5e9 / (size + 65536))
    return Bandwidth(size, rate, rate if both else None, {}, {})


def draw_latency(*done: Latency) -> Callable[[str], None]:
    return lambda path: _latency_report.save_plot(end("latency"), list(done), path)


def draw_bandwidth(*done: Bandwidth) -> Callable[[str], None]:
    us = end("bandwidth", num_qp=4, bidirectional=True)
    return lambda path: _bandwidth_report.save_plot(us, list(done), path)


def draw_pingpong(samples: array[int]) -> Callable[[str], None]:
    return lambda path: _report.save_plot(report(list(samples), iters=10**6), path)


PICTURES = {
    "latency": draw_latency(latency(2, 1000)),
    "latency of a server": draw_latency(latency(2, 1000, server=True)),
    "latency, all near each other": draw_latency(latency(2, 1000, 61_000)),
    "latency of few": draw_latency(latency(2, 3)),
    "latency of one": draw_latency(latency(2, 1)),
    "latency of all sizes": draw_latency(*(latency(size, 100) for size in SIZES)),
    "bandwidth": draw_bandwidth(bandwidth(65536)),
    "bandwidth, both ways": draw_bandwidth(bandwidth(65536, both=True)),
    "bandwidth of all sizes": draw_bandwidth(*map(bandwidth, SIZES)),
    "ping-pong": draw_pingpong(times(1000, 280_000, 400_000)),
    "ping-pong with a straggler": draw_pingpong(times(1000, 280_000, 50_000_000)),
    "ping-pong, all alike": draw_pingpong(array("q", [280_000] * 5)),
    "ping-pong of none": draw_pingpong(array("q")),
}


@pytest.fixture(params=PICTURES)
def figure(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Figure:
    """Each of the pictures, as it was saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *args: Any, **options: Any) -> None:
        save(self, *args, **options)
        self.dpi = options["dpi"]
        saved.append(self)

    monkeypatch.setattr(Figure, "savefig", keep)
    PICTURES[request.param](str(tmp_path / "a.png"))
    (figure,) = saved
    return figure


def texts(figure: Figure) -> list[Any]:
    """What is written in it: the title, the names and numbers at both axes, and the marks."""
    (axes,) = figure.axes
    figure.draw_without_rendering()
    ticks = [
        label
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        if min(low, high) <= tick <= max(low, high)
    ]
    legend = axes.get_legend()
    marks = [*axes.texts, *(legend.get_texts() if legend else [])]
    every = [figure._suptitle, axes.xaxis.label, axes.yaxis.label, *ticks, *marks]  # type: ignore[attr-defined]
    return [text for text in every if text.get_text()]


def test_every_text_is_whole_and_none_lies_over_another(figure: Figure) -> None:
    boxes = {text: text.get_window_extent() for text in texts(figure)}
    width, height = figure.bbox.size
    for text, box in boxes.items():
        cut = min(box.x0, box.y0, width - box.x1, height - box.y1)
        assert cut >= 0, text
    for one, other in itertools.combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one, other)


def test_every_text_is_legible_where_the_picture_is_small(figure: Figure) -> None:
    width = figure.get_figwidth()
    for text in texts(figure):
        assert text.get_fontsize() / 72 / width * SHOWN >= SMALLEST, text


def test_a_latency_of_one_size_has_all_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_args, **_options: drawn.append(self))
    measured = latency(2, 1000)
    draw_latency(measured)(str(tmp_path / "a.png"))
    curve, *marks = drawn[0].axes[0].lines
    assert list(curve.get_ydata()) == [sample / 2000 for sample in sorted(measured.samples)]
    assert [mark.get_ydata()[0] for mark in marks] == [
        measured.figures[name] for name in ("t_min", "t_typical", "p99", "p99_9", "t_max")
    ]

# SPDX-License-Identifier: MIT
"""The option --plot: a picture of a command's figures, drawn by matplotlib.

It is legible where it is shown 600 pixels wide, and has twice as many.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from . import CANNOT_RUN, CommandError

SUFFIXES: Final = (".svg", ".png")
INCHES: Final = (6, 3.75)
DPI: Final = 200
FONT: Final = 9  # points
LINE: Final = 90  # characters of that size above the picture
WIDE: Final = 4  # the ratio of values from which on an axis is logarithmic
MANY: Final = 1000  # the same, from which on only powers of ten are named there
SIZES: Final = 9  # the most that are named at their axis


def add_plot(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option; `what` says what is drawn."""
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=_picture,
        help=f"draw {what} into FILE, .svg or .png (needs matplotlib: cqnotify[plot])",
    )


def _picture(text: str) -> str:
    if not text.endswith(SUFFIXES):
        raise argparse.ArgumentTypeError(f"'{text}' ends neither in .svg nor in .png")
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written")
    return text


def need_matplotlib() -> None:
    """Raise CommandError if --plot cannot work, before anything runs."""
    try:
        import_module("matplotlib.figure")
    except ImportError as e:
        raise CommandError(
            f"--plot needs matplotlib, which cannot be imported ({e}): pip install cqnotify[plot]",
            CANNOT_RUN,
        ) from e


@contextmanager
def picture(path: str, title: str, **labels: str) -> Iterator[Any]:
    """Return the axes of a picture, which the block draws; it is then written into the file."""
    from matplotlib import rc_context  # which only --plot needs
    from matplotlib.figure import Figure

    with rc_context({"font.size": FONT}):
        figure = Figure(figsize=INCHES, layout="constrained")
        figure.suptitle(textwrap.fill(title, LINE), x=0.01, horizontalalignment="left", size=FONT)
        axes = figure.add_subplot(**labels)
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
        yield axes
        figure.savefig(path, dpi=DPI)


def scale(axes: Any, letter: str, values: Sequence[float]) -> None:
    """Make the axis x or y logarithmic if its values are far apart, with plain numbers at it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    if max(values) < WIDE * min(values):
        return
    getattr(axes, f"set_{letter}scale")("log")
    axis = getattr(axes, f"{letter}axis")
    decades = max(values) / min(values) >= MANY
    axis.set_major_locator(LogLocator(subs=(1,) if decades else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def scale_sizes(axes: Any, sizes: Sequence[int]) -> None:
    """Make the horizontal axis one of sizes, which are powers of two."""
    axes.set_xscale("log", base=2)
    named = sizes[:: -(-len(sizes) // SIZES)]
    axes.set_xticks(named, [_size(size) for size in named])


def draw_bars(axes: Any, values: Mapping[str, float]) -> None:
    """Draw each value as a bar, with its number; the first one is on top."""
    bars = axes.barh(list(values), list(values.values()))
    axes.bar_label(bars, [f"{value:,.2f}" for value in values.values()], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)  # where the numbers are


def _size(size: int) -> str:
    for unit, name in ((1 << 20, " Mi"), (1 << 10, " Ki")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)

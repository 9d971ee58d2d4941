# SPDX-License-Identifier: MIT
"""The option --plot: a picture of a command's figures, drawn by matplotlib."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from pathlib import Path
from typing import Final

from . import CANNOT_RUN, CommandError

SUFFIXES: Final = (".svg", ".png")


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

# SPDX-License-Identifier: MIT
"""What to do where the C core cannot be imported."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def why_no_core(folder: str) -> str:
    """Return why there is no core for this Python in the package's folder, and what helps."""
    if not Path(folder).is_dir():
        return (
            f"{folder} is in an archive, and a C extension such as cqnotify's core is loaded from "
            "a folder alone: install cqnotify by pip, or unpack the archive"
        )
    if built := sorted(path.name for path in Path(folder).glob("_core.*.so")):
        return (
            f"{folder} has cqnotify's C core for another Python, {', '.join(built)}: this is "
            f"{sys.executable} (Python {sys.version.split()[0]}), which needs "
            f"_core{EXTENSION_SUFFIXES[0]}. Install cqnotify with this Python, or start the other"
        )
    return (
        f"{folder} has cqnotify's sources without the built C core: start Python in another "
        "folder, or build the core by pip install -e ."
    )

# SPDX-License-Identifier: MIT
"""The lab's driver as a program: `python .../cqnotify/lab/__main__.py ACTION OPTION... -- WORD...`.

By its path, because `python -m` would import the whole package, whose core may not be built.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def bare_package() -> ModuleType:
    """Return the package as a folder, without what its __init__.py does."""
    bare = ModuleType("cqnotify")
    bare.__path__ = [str(Path(__file__).resolve().parents[1])]
    return bare


if not __package__:
    sys.modules["cqnotify"] = bare_package()

from cqnotify.lab.driver import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

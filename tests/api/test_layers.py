# SPDX-License-Identifier: MIT
"""The layers of the Python package: imports go one way, and private names stay in their files."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import cqnotify
from cqnotify import QP

ROOT = Path(cqnotify.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))

# What the files beside cqnotify/__init__.py are, is the face; the rest are folders, and hosts.py.
BELOW = {
    "face": {"face"},
    "hw": {"_core", "face"},
    "aio": {"_core", "enums"},
    "cm": {"_core", "face", "aio"},
    "_registered": {"_core", "face"},
    "memory": {"_core", "face", "aio", "cm", "_registered"},
    "messages": {"_core", "face", "aio", "cm", "_registered"},
    "dask": {"face", "cm", "messages"},
    "torch": {"face", "memory"},
    "ray": {"memory"},
    "metrics": {"_core"},
    "exchange": {"face"},
    "testing": {"_core", "face", "cm"},
    "hosts": set[str](),
    "lab": set[str](),
    "conformance": {"face", "testing"},
    "demo": {"face", "aio", "exchange", "testing"},
    "check": {"face"},
    "trace": {"face", "cm", "check"},
    "cli": {
        *("face", "cm", "exchange", "testing", "conformance", "demo", "lab", "check", "trace"),
    },
}

# Private by their look, but documented: of named tuples, of enums, of asyncio, of os.
DOCUMENTED = {
    "_asdict",
    "_exit",
    "_fields",
    "_make",
    "_replace",
    "_value2member_map_",
    "_get_running_loop",
    "_register_atexit",  # which concurrent.futures uses, too
}


def part_of(name: str) -> str:
    return name if name in BELOW else "face"


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, by the first part of their names."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) + 1 - node.level]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield ".".join([*base, name]).split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_from_its_own_layer_or_a_lower_one(path: Path) -> None:
    if path.name == "__main__.py":
        return  # it starts the command line
    own = part_of(path.relative_to(ROOT).with_suffix("").parts[0])
    for name in imported(path):
        wanted = part_of(name)
        assert wanted == own or name in BELOW[own] or wanted in BELOW[own], name


def names_of(tree: ast.AST) -> set[str]:
    """What is defined in a file: functions, classes, and attributes that are assigned or listed."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


CORE = names_of(ast.parse((ROOT / "_core.pyi").read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_attributes_are_used_in_their_own_file(path: Path) -> None:
    tree = ast.parse(path.read_text())
    known = names_of(tree) | CORE | DOCUMENTED
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            assert node.attr in known or node.attr.endswith("__"), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] != "_core":
            private = [a.name for a in node.names if a.name.startswith("_") and node.module]
            assert not private, ast.unparse(node)


@pytest.mark.parametrize("step", [QP.to_init, QP.to_rtr, QP.to_rts])
def test_the_steps_of_a_connection_take_what_connect_takes(step: object) -> None:
    """With the same defaults; but to_rtr() leaves the access alone that to_init() gave."""
    whole = inspect.signature(QP.connect).parameters
    assert callable(step)
    for name, parameter in inspect.signature(step).parameters.items():
        if (step, name) != (QP.to_rtr, "access"):
            assert parameter == whole[name]

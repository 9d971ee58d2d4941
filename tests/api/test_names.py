# SPDX-License-Identifier: MIT
"""What tab completion offers: the names that are for users, and no others."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import cqnotify
import cqnotify.aio
import cqnotify.hw

OBJECT = {"add_close_callback", "close", "closed", "remove_close_callback"}

NAMES = {
    "AH": OBJECT | {"from_wc", "pd", "pointer"},
    "AsyncCQ": {
        *("atomic_cmp_and_swp", "atomic_fetch_and_add", "batches", "close", "closed", "completion"),
        *("cq", "poll", "read", "recv", "scope", "send", "spin", "stats", "wait", "write"),
    },
    "AsyncEvent": {"cq", "event_type", "port_num", "qp", "srq", "transient"},
    "Batches": set(),
    "CQ": OBJECT
    | {
        *("ack", "channel", "comp_vector", "context", "cqe", "modify", "name", "poll"),
        *("poll_ids", "poll_into", "req_notify", "resize", "arm_if_empty", "stats", "unacked"),
        *("user_data", "wc_flags", "pointer"),
    },
    "CompletionChannel": OBJECT
    | {
        "context",
        "fileno",
        "get_event",
        "interrupt",
        "pointer",
        "transient_errors",
        "try_get_event",
    },
    "FailureWatch": OBJECT | {"context", "fileno", "read"},
    "Scope": {"outstanding"},
}
"""Of the classes that have something to hide; the others have what their stubs declare."""

CLASSES = [
    value
    for module in (cqnotify, cqnotify.hw, cqnotify.aio)
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name))
]


def offered(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_a_class_offers_what_is_for_users(name: str) -> None:
    (kind,) = [kind for kind in CLASSES if kind.__name__ == name]
    assert offered(kind) == NAMES[name]


def test_the_package_offers_its_public_names_and_its_modules() -> None:
    folder = Path(cqnotify.__file__).parent
    modules = {
        path.stem for path in folder.iterdir() if re.fullmatch(r"[a-z]\w*(\.py)?", path.name)
    }
    assert offered(cqnotify) <= set(cqnotify.__all__) | modules
    assert offered(cqnotify.aio) <= set(cqnotify.aio.__all__)
    assert offered(cqnotify.hw) == set(cqnotify.hw.__all__)


def test_a_name_is_at_the_top_or_in_hw() -> None:
    assert not {*cqnotify.__all__} & {*cqnotify.hw.__all__}


@pytest.mark.parametrize("name", ["", ".hw", ".aio", ".exchange", ".conformance", ".testing"])
def test_a_star_import_brings_the_public_names_alone(name: str) -> None:
    module = importlib.import_module(f"cqnotify{name}")
    assert all(not public.startswith("_") and hasattr(module, public) for public in module.__all__)

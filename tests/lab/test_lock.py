# SPDX-License-Identifier: MIT
"""Without a GIL nothing protects a function that forgot its lock: see csrc/base/lock.h."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
# What a table names that Python calls, in the form of a definition.
TABLE = re.compile(r"static Py(?:MethodDef|GetSetDef|Type_Slot) \w+\[\] = \{(.*?)\n\};", re.S)
SHARED = re.compile(
    r"^#define CQN_(?:OBJECT_METHODS|OBJECT_GETSET|FREE_ATTRIBUTE|COROUTINE_METHODS)\b.*?[^\\]$",
    re.M | re.S,
)
FUNCTION = re.compile(
    r"^(?:CQN_\w+ )?(?:static )?(?:PyObject \*|\w+ )(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.M | re.S
)
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

# They read only what never changes, or have no part in what is shared.
IMMUTABLE = re.compile(
    r"wc_|sge_|event_|array_(?:new|dealloc|getbuffer)|(?:send|recv)_wr_(?:repr|dealloc)"
)
ALONE = {
    "array_count",  # it calls array_item()
    "array_index",  # the same
    "array_subscript",  # the same
    "cm_call_dealloc",  # it calls cm_call_tp_clear()
    "cqn_coroutine_next",  # it calls am_send of the type
    "cqn_coroutine_send",  # the same
    "cqn_dealloc",  # it calls dealloc_object()
    "cqn_list_devices",
    "cqn_value_copy",
    "awaitable_get_name",  # given when it was made
    "flow_dealloc",  # it calls flow_clear()
    "ring_dealloc",
    "ring_new",
    "scope_clear",
    "selector_dealloc",  # it calls selector_clear()
    "wakeup_clear",
    "wakeup_dealloc",
    "wakeup_next",  # it calls wakeup_send()
}


# They hold only half of the lock, and write to nothing that two contexts share.
HALF = {
    "cq_ack",
    "cq_arm_if_empty",
    "cq_req_notify",
    "cqn_cq_poll",
    "cqn_cq_poll_ids",
    "cqn_cq_poll_into",
    "cqn_qp_post_recv",
    "cqn_qp_post_send",
    "cqn_srq_post_recv",
}


def functions() -> Iterator[tuple[str, str]]:
    for path in sorted(CSRC.rglob("*.c")):
        if path.parent.name != "faults":  # built for tests only
            yield from FUNCTION.findall(path.read_text())


def called_by_python() -> set[str]:
    text = "".join(path.read_text() for path in sorted(CSRC.rglob("*.[ch]")))
    tables = [*TABLE.findall(text), *SHARED.findall(text)]
    return {name for table in tables for name in re.findall(r"\b[a-z]\w+", STRING.sub("", table))}


def test_what_python_calls_holds_the_lock() -> None:
    names = called_by_python()
    bodies = [(name, body) for name, body in functions() if name in names]
    assert len(bodies) > 150, "the tables were found"
    without = {
        name
        for name, body in bodies
        if "CQN_LOCKED;" not in body
        and not name.endswith("_traverse")  # the collector stops all threads
        and not IMMUTABLE.match(name)
    }
    assert without == ALONE | HALF
    assert {name for name, body in functions() if "CQN_HALF_LOCKED(op);" in body} == HALF

# SPDX-License-Identifier: MIT
"""The contexts of an exporter.

An exporter keeps no context alive or open. It has weak references to contexts, and what each had
counted when it was closed; so nothing that it exports falls when contexts come and go.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from .. import _core
from ._counters import ChannelCounters, Counters, Snapshot, snapshot

# Held while contexts are added, closed and looked at. The collector can close a context at any
# time, so the lock is reentrant, and what it guards is replaced, not changed.
_lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child, where a thread of the parent that held the lock does not exist."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)

Totals = Mapping[tuple[str, str | None], Counters | ChannelCounters]
"""By the name of the device and that of the CQs; None: of its channels."""


class _State(NamedTuple):
    open: tuple[_Exported, ...]
    closed: Totals


class _Exported:
    """A context, and the latest that is known of it."""

    __slots__ = ("context", "latest")

    def __init__(self, context: _core.Context) -> None:
        self.context = weakref.ref(context)
        self.latest = snapshot(context)

    def look(self) -> None:
        context = self.context()
        if context is not None:
            self.latest = snapshot(context)


class Contexts:
    """Some contexts, to which others may be added."""

    def __init__(self, contexts: Iterable[_core.Context]) -> None:
        self._state = _State((), {})
        for context in contexts:
            self.add(context)

    def add(self, context: _core.Context) -> None:
        """Export this context, too; ClosedError if it is closed."""
        exported = _Exported(context)
        with _lock:
            if any(other.context() is context for other in self._state.open):
                return
            context.add_close_callback(partial(self._closed, exported))
            self._state = _State((*self._state.open, exported), self._state.closed)

    def _closed(self, exported: _Exported) -> None:
        """Called in the thread that has closed the context, and all its CQs before."""
        with _lock:
            exported.look()
            left = tuple(other for other in self._state.open if other is not exported)
            self._state = _State(left, _added(self._state.closed, exported.latest))

    def totals(self) -> Totals:
        """Add up what all contexts of each device have counted, those that are closed included."""
        with _lock:
            for exported in self._state.open:
                exported.look()
            state = self._state
            totals = state.closed
            for exported in state.open:
                totals = _added(totals, exported.latest)
            return totals


def _added(totals: Totals, more: Snapshot) -> Totals:
    new: dict[tuple[str, str | None], Any] = dict(totals)
    for name, counters in (*more.cqs.items(), (None, more.channels)):
        key = more.device, name
        new[key] = new[key] + counters if key in new else counters
    return new

# SPDX-License-Identifier: MIT
"""Exporting to OpenTelemetry, with its API: `pip install cqnotify[opentelemetry]`.

OpenTelemetry has no histogram that is observed when metrics are collected. So the buckets of one
are counters, as they are in Prometheus: `.bucket` with an attribute `le`, and `.sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from .. import _core
from ._contexts import Contexts
from ._counters import Histogram
from ._families import FAMILIES, Family, samples, up_to

__all__ = ["Instruments", "instrument"]


class Instruments:
    """The contexts that a meter observes."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    def add(self, context: _core.Context) -> None:
        """Observe another Context, too.

        context: the Context; ClosedError if it is closed.
        """
        self._contexts.add(context)


def instrument(meter: Meter, *contexts: _core.Context) -> Instruments:
    """Create instruments that observe what CQs count, whenever metrics are collected.

    meter: an OpenTelemetry Meter.
    contexts: any number of Contexts, which are kept neither open nor alive.

    Their names begin with `cqnotify.`, and the attributes are `device` and `cq`, the CQs' name.
    Raises ClosedError for a closed Context.
    """
    observed = Contexts(contexts)
    for family in FAMILIES:
        _create(meter, family, observed)
    return Instruments(observed)


Observe = Callable[[Family, Contexts, CallbackOptions], Iterable[Observation]]


def _create(meter: Meter, family: Family, contexts: Contexts) -> None:
    def create(kind: str, name: str, observe: Observe, unit: str = "") -> None:
        make = {
            "counter": meter.create_observable_counter,
            "gauge": meter.create_observable_up_down_counter,
        }[kind]
        make(name, [partial(observe, family, contexts)], unit, family.text)

    name = f"cqnotify.{family.name}"
    if family.kind != "histogram":
        create(family.kind, name, _observe_numbers)
        return
    base = name.removesuffix("_seconds")
    create("counter", f"{base}.bucket", _observe_buckets)
    create("counter", f"{base}.sum", _observe_sums, "" if base == name else "s")


def _observe_numbers(
    family: Family, contexts: Contexts, options: CallbackOptions
) -> Iterable[Observation]:
    for labels, value in samples(family, contexts.totals()):
        assert isinstance(value, int)
        yield Observation(value, labels)


def _observe_buckets(
    family: Family, contexts: Contexts, options: CallbackOptions
) -> Iterable[Observation]:
    for labels, value in samples(family, contexts.totals()):
        assert isinstance(value, Histogram)
        for bound, count in up_to(family, value):
            yield Observation(count, {**labels, "le": bound})


def _observe_sums(
    family: Family, contexts: Contexts, options: CallbackOptions
) -> Iterable[Observation]:
    for labels, value in samples(family, contexts.totals()):
        assert isinstance(value, Histogram)
        yield Observation(value.sum / family.divisor, labels)

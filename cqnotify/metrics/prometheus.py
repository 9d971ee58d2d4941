# SPDX-License-Identifier: MIT
"""Exporting to Prometheus, with prometheus_client: `pip install cqnotify[prometheus]`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .. import _core
from ._contexts import Contexts, Totals
from ._counters import Histogram
from ._families import FAMILIES, Family, samples, up_to

__all__ = ["Collector"]


class Collector:
    """Counters of CQs, for a registry of prometheus_client: `REGISTRY.register(Collector(ctx))`.

    contexts: any number of Contexts, which it keeps neither open nor alive.

    The metrics begin with `cqnotify_`, and have the labels `device` and `cq`, the CQs' name. Raises
    ClosedError for a closed Context.
    """

    def __init__(self, *contexts: _core.Context) -> None:
        self._contexts = Contexts(contexts)

    def add(self, context: _core.Context) -> None:
        """Export another Context, too.

        context: the Context; ClosedError if it is closed.
        """
        self._contexts.add(context)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as they are now. The registry calls this, in any thread."""
        totals = self._contexts.totals()
        return [_metric(family, totals) for family in FAMILIES]


def _metric(family: Family, totals: Totals) -> Metric:
    name = f"cqnotify_{family.name}"
    if family.kind == "histogram":
        return _histogram(name, family, totals)
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(name, family.text)
    suffix = "_total" if family.kind == "counter" else ""
    for labels, value in samples(family, totals):
        assert isinstance(value, int)
        metric.add_sample(name + suffix, labels, value)
    return metric


def _histogram(name: str, family: Family, totals: Totals) -> Metric:
    metric = HistogramMetricFamily(name, family.text)
    for labels, value in samples(family, totals):
        assert isinstance(value, Histogram)
        for bound, count in up_to(family, value):
            metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        metric.add_sample(f"{name}_count", labels, value.count)
        metric.add_sample(f"{name}_sum", labels, value.sum / family.divisor)
    return metric

# SPDX-License-Identifier: MIT
"""Counters of the CQs and channels of a context, and the time that their waiters take to wake.

See docs/metrics.md.

    snapshot(ctx)                 now, of all its CQs, by their names; closed ones included
    later - earlier               what happened in between
    cqnotify.metrics.prometheus   exports them to Prometheus
    cqnotify.metrics.opentelemetry   ... to OpenTelemetry

Counting is always on. Latencies are measured while `ctx.measure_latency` is True.
"""

from ._counters import (
    BOUNDS,
    ChannelCounters,
    Counters,
    Histogram,
    Snapshot,
    counters,
    snapshot,
)

__all__ = ["BOUNDS", "ChannelCounters", "Counters", "Histogram", "Snapshot", "counters", "snapshot"]

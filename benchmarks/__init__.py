# SPDX-License-Identifier: MIT
"""cqnotify compared with C, pyverbs and ibverbs, on the same work; run by ./lab bench."""

NAMES = (
    "drain",
    "cycle",
    "post",
    "queries",
    "imports",
    "memory",
    "round_trip",
    "receiver",
    "channels",
    "throughput",
    "computing",
    "latency",
    "two_threads",
    "completion",
    "awaiting",
    "spin",
    "many",
    "connections",
    "messages",
    "exposing",
    "gets",
    "sizes",
    "observed",
)
"""The benchmarks, a module each, in the order of the report."""

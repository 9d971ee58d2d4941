# SPDX-License-Identifier: MIT
"""The measurement: cases and sequences on a device, in batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from ..attrs import Device
from ..context import Context, is_iwarp
from ._bench import Bench
from ._cases import Case, cases
from ._report import Report, Row
from ._run import play_cases, stays_in_flight
from ._sequence_report import SequenceRow
from ._sequence_run import play_sequences
from ._sequences import Action, Sequence
from ._sequences import sequences as all_sequences

__all__ = ["measure"]

# How many cases, with two queue pairs and two CQs each. A sequence has as many for each of its CQs.
_BATCH: Final = 128
_BATCH_OF_SEQUENCES: Final = 192  # their steps wait, so that one large batch is faster
_BATCH_OF_IWARP: Final = 20  # a context of libsiw has room for 144 queues

_Item = TypeVar("_Item", Case, Sequence)
_Row = TypeVar("_Row", Row, SequenceRow)


def measure(
    device: str | Device | None = None,
    chosen: Iterable[Case] | None = None,
    *,
    sequences: Iterable[Sequence] | None = None,
    port_num: int = 1,
    gid_index: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Report:
    """Run cases and sequences on a device and return the results.

    device: the device, or its name; by default the first one. It is opened anew, so contexts that
        are already open get no event for the failures.
    chosen, sequences: the cases and the sequences. If only one of them is given, the others are
        left out; by default all are run.
    port_num, gid_index: the port between whose queue pairs the traffic is, and its GID.
    progress: called from time to time with the number of cases and sequences done.

    The queue pairs of an iWARP device are connected by rdma_cm, so neither the port nor its GID
    matters there.

    Raises VerbsError where the device cannot be opened, or fails in another way than by not
    supporting an operation; LookupError where the port has no GID.
    """
    everything = chosen is None and sequences is None
    todo = list(cases() if everything else chosen or ())
    steps = list(all_sequences() if everything else sequences or ())
    with Context(device) as context:
        name = context.name
        iwarp = is_iwarp(context)
    if iwarp:
        todo = [case for case in todo if not stays_in_flight(case)]
    done = 0

    def run(play: Callable[[Bench, list[_Item]], list[_Row]], batch: list[_Item]) -> list[_Row]:
        nonlocal done
        if progress is not None:
            progress(done)
        done += len(batch)
        with Context(name) as context:  # which closes all that is left open
            return play(Bench(context, port_num, gid_index), batch)

    rows: list[Row] = []
    for batch in _batches(todo, _BATCH_OF_IWARP if iwarp else _BATCH, lambda case: 1):
        rows += run(play_cases, batch)
    found: list[SequenceRow] = []
    for part in _batches(steps, _BATCH_OF_IWARP if iwarp else _BATCH_OF_SEQUENCES, _weight):
        found += run(play_sequences, part)
    return Report(name, os.uname().release, tuple(rows), tuple(found))


def _weight(sequence: Sequence) -> int:
    """Return how many pairs of queue pairs it has."""
    renewed = sum(step.action is Action.NEW_QPS for step in sequence.steps)
    return sequence.cqs + renewed


def _batches(
    items: Iterable[_Item], size: int, weight: Callable[[_Item], int]
) -> Iterator[list[_Item]]:
    """Yield the items in batches, of this weight at most where there are several."""
    batch: list[_Item] = []
    room = size
    for item in items:
        if batch and weight(item) > room:
            yield batch
            batch, room = [], size
        batch.append(item)
        room -= weight(item)
    if batch:
        yield batch

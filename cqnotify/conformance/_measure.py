# SPDX-License-Identifier: MIT
"""Playing every case on a device, in batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ..attrs import Device
from ..context import Context, refuse_iwarp
from ._cases import Case, Outcome, cases
from ._report import Deviation, Report, Row
from ._trial import Bench, Trial

_BATCH: Final = 128  # cases, with two queue pairs and two CQs each

# Seconds without anything new that end a batch: where completions that have to come are missing,
# where events that the manual promises are, and where nothing is.
_LACKS_COMPLETION, _LACKS_EVENT, _COMPLETE = 5.0, 1.0, 0.3


def measure(
    device: str | Device | None = None,
    chosen: Iterable[Case] | None = None,
    *,
    port_num: int = 1,
    gid_index: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Report:
    """Play cases on a device and return what came of them; by default all, on the first device.

    The traffic is between queue pairs of one port. The device is opened anew, so that who uses it
    already is not told of the failures. `progress` is called now and then with the number of cases
    that are done. Raises VerbsError where the device can not be opened, is an iWARP device, or has
    another trouble than to lack an operation, LookupError where the port has no GID.
    """
    todo = list(cases() if chosen is None else chosen)
    rows: list[Row] = []
    with Context(device) as context:
        refuse_iwarp(context)
        name = context.name
    for start in range(0, len(todo), _BATCH):
        if progress is not None:
            progress(start)
        with Context(name) as context:
            trials = _play(Bench(context, port_num, gid_index), todo[start : start + _BATCH])
            rows += [row for trial in trials for row in trial.rows()]  # the context closes the rest
    return Report(name, os.uname().release, tuple(rows))


def _play(bench: Bench, batch: Sequence[Case]) -> list[Trial]:
    trials = [Trial(bench, case) for case in batch]
    for trial in trials:
        trial.prepare()
    if any(case.outcome is Outcome.POSTED_IN_ERR for case in batch):
        time.sleep(_COMPLETE)  # a flush that is still under way would take what is posted now
    for trial in trials:
        trial.act()
    _collect(bench, trials)
    return trials


def _collect(bench: Bench, trials: Sequence[Trial]) -> None:
    """Take completions and events until nothing new comes.

    That an event does not come can not be proved. It may follow its completion: Linux 6.1's rxe
    shows the completion to the program first, and tells the channel in a tasklet. No later event
    is proof of its absence, either: one of the same CQ may be merged with it, and one of another
    CQ may overtake it. So no CQ is armed twice, whatever its trial brings can take as long as the
    batch does, and the batch ends with some time in which nothing comes.
    """
    last = time.monotonic()
    while True:
        came = [trial.poll() for trial in trials]
        if bench.drain() or any(came):
            last = time.monotonic()
        quiet = time.monotonic() - last
        if quiet > _COMPLETE and quiet > _patience(trials):
            return
        time.sleep(0.01)


def _patience(trials: Iterable[Trial]) -> float:
    deviations = {d for trial in trials for row in trial.rows() for d in row.deviations}
    if Deviation.NO_COMPLETION in deviations:
        return _LACKS_COMPLETION
    return _LACKS_EVENT if Deviation.NO_EVENT in deviations else _COMPLETE

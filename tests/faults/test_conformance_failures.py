# SPDX-License-Identifier: MIT
"""Conformance where the device refuses, or calls fail."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable

import pytest
from fault_world import TOLERATED, core, open_files

from cqnotify import Context, QPType, conformance


def test_conformance_tells_what_a_device_without_atomics_refuses(ctx: Context) -> None:
    chosen = [
        case
        for case in conformance.cases([QPType.RC])
        if case.outcome is conformance.Outcome.SUCCESS and case.sq_sig_all
    ]
    core.hide_features("atomics")
    report = conformance.measure(ctx.name, chosen)
    refused = [row for row in report.rows if row.refusal]
    atomics = {"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"}
    assert {row.case.operation for row in refused} == atomics
    assert len(refused) == sum(len(c.queues) for c in chosen if c.operation in atomics)
    for row in refused:
        assert (row.statuses, row.events, row.deviations) == ((), 0, ())
        assert f"{ctx.name} has no atomic operations" in str(row.refusal)
    assert not report.deviating
    text = " ".join(conformance.format_report(report).partition("Not supported:\n")[2].split())
    for name in atomics:
        assert f"- RC {name}: [Errno 95] ibv_post_send: not supported by this device: " in text
    assert conformance.Report.from_dict(report.as_dict()) == report


LACKING = {
    *("ibv_create_qp", "ibv_query_qp", "ibv_modify_qp"),
    *("ibv_query_gid_ex", "ibv_create_ah"),
    *("ibv_post_recv", "ibv_post_recv when made", "ibv_post_send", "ibv_post_send when made"),
}


def refused_when_lacking(measure: Callable[[], conformance.Report], error: int) -> set[str]:
    """Fails each call once, until completions are polled; those that make all rows refusals."""
    measure()
    handles, files = core.live_handles(), open_files()
    refused: set[str] = set()
    posted = False
    for n in range(1, 1000):
        core.fail_call(n, error)
        report, exception = None, None
        try:
            report = measure()
        except (OSError, MemoryError) as e:
            exception = e
        call = core.failed()
        core.fail_call(0)
        where = f"call {n}, {call}: {exception!r}"
        if isinstance(exception, OSError):
            assert exception.errno == (errno.EPROTO if call == "ibv_poll_cq" else error), where
        elif report is not None and call not in TOLERATED:
            assert all(row.refusal for row in (*report.rows, *report.sequences)), where
            refused.add(call)
        del exception
        gc.collect()
        assert (core.live_handles(), open_files()) == (handles, files), where
        posted = posted or call == "ibv_post_send"
        if posted and call == "ibv_poll_cq":
            return refused
    raise AssertionError("it never came to poll for completions")


@pytest.mark.filterwarnings("ignore:unclosed Context")  # where closing is what fails
@pytest.mark.parametrize("error", [errno.EIO, errno.EOPNOTSUPP])
def test_each_call_of_a_conformance_trial_fails_once(ctx: Context, error: int) -> None:
    """What the device lacks is a row, and the rest goes on; other trouble ends it."""
    chosen = list(conformance.cases([QPType.UD]))[:1]
    refused = refused_when_lacking(lambda: conformance.measure(ctx.name, chosen), error)
    assert refused == (LACKING if error == errno.EOPNOTSUPP else set())


@pytest.mark.filterwarnings("ignore:unclosed Context")  # where closing is what fails
@pytest.mark.parametrize("error", [errno.EIO, errno.EOPNOTSUPP])
def test_each_call_of_a_sequence_fails_once(ctx: Context, error: int) -> None:
    """As of a case; and a device may lack what only a sequence needs."""
    actions = ("RESIZE", "ARM_ANY", "COMPLETE", "EVENTS")
    steps = tuple(conformance.Step(conformance.Action[name]) for name in actions)
    chosen = [conformance.Sequence("mine", QPType.UD, conformance.Queue.RECV, steps)]
    refused = refused_when_lacking(lambda: conformance.measure(ctx.name, sequences=chosen), error)
    needed = {
        *("ibv_create_comp_channel", "ibv_create_cq", "ibv_resize_cq"),
        *("ibv_req_notify_cq", "ibv_get_cq_event"),
    }
    assert refused == (LACKING | needed if error == errno.EOPNOTSUPP else set())

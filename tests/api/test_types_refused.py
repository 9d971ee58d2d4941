# SPDX-License-Identifier: MIT
"""What is refused when it runs, the type checkers refuse, too.

Each such line has a comment that lets it pass, and which they report where it is not needed: so it
is noticed when a type becomes too lax.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cqnotify import (
    CQ,
    MR,
    PD,
    QP,
    CompletionChannel,
    CompletionError,
    Context,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    SuccessfulCompletion,
    WCArray,
    WCStatus,
    WorkCompletion,
)
from cqnotify.aio import AsyncCQ
from cqnotify.testing import Endpoint, PairFactory, connect, wait_completions

Pair = tuple[Endpoint, Endpoint]


def refused(*calls: Callable[[], object], error: type[Exception] = TypeError) -> None:
    for i, call in enumerate(calls):
        try:
            call()
        except error:
            continue
        pytest.fail(f"number {i} is not refused")


def test_constructors(rdma_context: Context, rdma_pd: PD, rdma_cq: CQ) -> None:
    refused(
        lambda: Context(1),  # type: ignore[arg-type]
        lambda: PD(rdma_pd),  # type: ignore[arg-type]
        lambda: CQ(rdma_context, "16"),  # type: ignore[arg-type]
        lambda: CQ(rdma_context, 16, rdma_cq.channel),  # type: ignore[call-arg]
        lambda: CQ(rdma_context),  # type: ignore[call-arg]
        lambda: MR(rdma_pd, "text"),  # type: ignore[arg-type]
        lambda: MR(rdma_pd, [1, 2]),  # type: ignore[arg-type]
        lambda: MR(rdma_pd, None),  # type: ignore[arg-type]
        lambda: MR(rdma_pd, 64, access="rw"),  # type: ignore[arg-type]
        lambda: QP(rdma_pd, QPType.RC),  # type: ignore[call-overload]
        lambda: QP(rdma_pd, QPType.RC, send_cq=rdma_cq, max_send=4),  # type: ignore[call-overload]
        lambda: WorkCompletion(1),  # type: ignore[call-arg]
        lambda: WCArray("4"),  # type: ignore[arg-type]
        lambda: AsyncCQ(rdma_context),  # type: ignore[arg-type]
    )


def test_subclasses_of_final_classes() -> None:
    with pytest.raises(TypeError):

        class Mine(WorkCompletion):  # type: ignore[misc]
            pass


def test_connecting(rdma_pd: PD, rdma_cq: CQ) -> None:
    qp = QP(rdma_pd, QPType.RC, send_cq=rdma_cq)
    refused(
        lambda: qp.connect(b"address"),  # type: ignore[arg-type]
        lambda: qp.connect(qp.address(), time_out=14),  # type: ignore[call-arg]
    )


def test_methods(rdma_rc_pair: Pair, rdma_mr: MR) -> None:
    a, b = rdma_rc_pair
    cq, channel = b.recv_cq, b.channel
    refused(
        lambda: channel.get_event("1"),  # type: ignore[arg-type]
        lambda: cq.poll(None),  # type: ignore[arg-type]
        lambda: cq.poll(16, 0.1),  # type: ignore[call-arg]
        lambda: cq.poll_into([]),  # type: ignore[arg-type]
        lambda: rdma_mr.write("text"),  # type: ignore[arg-type]
        lambda: rdma_mr[0],  # type: ignore[index]
        lambda: b.qp.post_recv(b"read-only"),  # type: ignore[call-overload]
        lambda: b.qp.post_recv(SendWR()),  # type: ignore[call-overload]
        lambda: a.qp.post_send(RecvWR()),  # type: ignore[call-overload]
        lambda: a.qp.post_send(a.mr[0:8], wrid=1),  # type: ignore[call-overload]
        lambda: a.qp.modify(state=6),  # type: ignore[call-arg]
    )


def test_what_cannot_be_set(rdma_rc_pair: Pair, rdma_channel: CompletionChannel) -> None:
    a, b = rdma_rc_pair
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:8])
    (wc,) = wait_completions(b.recv_cq)
    with pytest.raises(AttributeError):
        wc.status = WCStatus.SUCCESS  # type: ignore[misc]
    with pytest.raises(AttributeError):
        b.recv_cq.channel = rdma_channel  # type: ignore[misc]
    with pytest.raises(AttributeError):
        a.mr.length = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        _ = wc.bytes_len  # type: ignore[attr-defined]


def test_what_may_be_none(rdma_context: Context, rdma_rc_pair: Pair) -> None:
    b = rdma_rc_pair[1]
    b.qp.post_recv(b.mr)
    b.qp.modify(qp_state=QPState.ERR)
    (wc,) = wait_completions(b.recv_cq)
    with pytest.raises(TypeError):
        _ = wc.byte_len - 40  # type: ignore[operator]
    with pytest.raises(CompletionError):
        _ = wc.raise_for_status().byte_len - 40
    with pytest.raises(TypeError):
        isinstance(wc, SuccessfulCompletion)  # type: ignore[misc]
    refused(
        lambda: rdma_context.try_get_async_event().event_type,  # type: ignore[union-attr]
        error=AttributeError,
    )


def test_helpers(rdma_context: Context, rdma_rc_pair: Pair, rdma_pair: PairFactory) -> None:
    refused(
        lambda: Endpoint(rdma_context, max_send=4),  # type: ignore[call-arg]
        lambda: connect(*rdma_rc_pair, time_out=1),  # type: ignore[call-arg]
        lambda: rdma_pair(QPType.RC, both_devices=True),  # type: ignore[call-arg]
    )

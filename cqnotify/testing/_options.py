# SPDX-License-Identifier: MIT
"""Keyword arguments that are handed on to `QP()` and to `QP.connect()`, as types."""

from __future__ import annotations

from typing import TypedDict

from .._core import SRQ
from ..enums import MTU, AccessFlags


class QPOptions(TypedDict, total=False):
    """What an Endpoint hands on to `QP()`."""

    srq: SRQ | None
    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int
    sq_sig_all: bool
    atomic_write: bool
    user_data: object


class PathOptions(TypedDict, total=False):
    """What goes to `QP.connect()` of both ends, besides their rights."""

    pkey_index: int
    qkey: int | None
    path_mtu: MTU | int | None
    max_dest_rd_atomic: int
    min_rnr_timer: int
    hop_limit: int
    sl: int
    traffic_class: int
    flow_label: int
    timeout: int
    retry_cnt: int
    rnr_retry: int
    max_rd_atomic: int


class ConnectOptions(PathOptions, total=False):
    """What `cqnotify.testing.connect` hands on to `QP.connect()`."""

    access: AccessFlags | int


class PairOptions(QPOptions, PathOptions, total=False):
    """What the fixture `rdma_pair` takes: all of it; `access` is that of the MR."""

    size: int
    access: AccessFlags | int | None
    cqe: int
    one_cq: bool
    port_num: int
    gid_index: int | None

# SPDX-License-Identifier: MIT
"""Keyword arguments that are handed on to `QP()`, as types; see `ConnectOptions`, too."""

from __future__ import annotations

from typing import TypedDict

from .._core import SRQ
from .._qp_connect import PathOptions
from ..enums import AccessFlags


class QPOptions(TypedDict, total=False):
    """The parameters of `QP()` that an Endpoint hands on."""

    srq: SRQ | None
    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int
    sq_sig_all: bool
    atomic_write: bool
    flush: bool
    user_data: object


class PairOptions(QPOptions, PathOptions, total=False):
    """The parameters of the fixture `rdma_pair`; `access` is that of the MR."""

    size: int
    access: AccessFlags | int | None
    cqe: int
    one_cq: bool
    port_num: int
    gid_index: int | None

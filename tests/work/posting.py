# SPDX-License-Identifier: MIT
"""What the tests of posting share: where a request goes, and what it brings."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from support import QKEY, Endpoint, Pair, connect

from cqnotify import AH, MR, Context, QPType

Post = Callable[..., None]


def fill(mr: MR, n: int, seed: int = 1) -> bytes:
    data = random.Random(seed).randbytes(n)
    mr.write(data)
    return data


def ah_to(a: Endpoint, b: Endpoint) -> AH:
    local, remote = a.ctx.find_gid(), b.ctx.find_gid()
    return AH(a.pd, dgid=remote.gid, sgid_index=local.index)


def path_to(a: Endpoint, b: Endpoint) -> dict[str, Any]:
    return {"ah": ah_to(a, b), "remote_qpn": b.qp.qp_num, "remote_qkey": QKEY}


def remote(e: Endpoint, offset: int = 0) -> dict[str, Any]:
    return {"remote_addr": e.mr.addr + offset, "rkey": e.mr.rkey}


def stuck(ctx: Context, **options: Any) -> Pair:
    """An endpoint, and a peer that, without a receive, takes none of its sends."""
    return connect(Endpoint(ctx, QPType.RC, **options), Endpoint(ctx, QPType.RC), rnr_retry=7)

# SPDX-License-Identifier: MIT
"""Windows, and a peer that comes through them."""

from __future__ import annotations

from typing import Any

import pytest
from support import Endpoint, Pair, connect, wait_completions, wait_one

from cqnotify import MW, AccessFlags, Context, MWType, QPType, WCOpcode, WCStatus, WROpcode

READ, WRITE = AccessFlags.REMOTE_READ, AccessFlags.REMOTE_WRITE
ATOMIC = AccessFlags.REMOTE_ATOMIC
ALL = READ | WRITE | ATOMIC
BINDABLE = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND  # nothing for a peer but by a window
TYPES = [MWType.TYPE_1, MWType.TYPE_2]
REFUSED = WCStatus.REM_ACCESS_ERR


def new_pair(ctx: Context, qp_type: QPType = QPType.RC) -> Pair:
    """The owner of the windows, and its peer."""
    owner, peer = Endpoint(ctx, qp_type, access=BINDABLE), Endpoint(ctx, qp_type)
    return connect(owner, peer, access=ALL if qp_type == QPType.RC else WRITE)


def bind(owner: Endpoint, mw: MW, a: int, b: int, access: AccessFlags = ALL, **more: Any) -> int:
    """Returns the key; the window is bound by then."""
    owner.qp.bind_mw(mw, owner.mr[a:b], access=access, **more)
    wc = wait_one(owner.scq)
    assert wc.opcode is WCOpcode.BIND_MW
    return mw.rkey


def request(peer: Endpoint, opcode: WROpcode, addr: int, rkey: int, size: int = 8) -> WCStatus:
    """What comes of an operation of the peer's."""
    add = 1 if opcode == WROpcode.ATOMIC_FETCH_AND_ADD else None
    peer.qp.post_send(peer.mr[0:size], opcode=opcode, remote_addr=addr, rkey=rkey, compare_add=add)
    (wc,) = wait_completions(peer.scq, 1)
    assert isinstance(wc.status, WCStatus)
    return wc.status


def invalidate(owner: Endpoint, rkey: int) -> None:
    owner.qp.post_send(None, opcode=WROpcode.LOCAL_INV, invalidate_rkey=rkey)
    assert wait_one(owner.scq).opcode is WCOpcode.LOCAL_INV


of_each_type = pytest.mark.parametrize("window", TYPES, indirect=True)


class Window:
    """A window on the memory of `owner`, through which `peer` comes."""

    def __init__(self, pair: Pair, mw_type: MWType) -> None:
        self.owner, self.peer = pair
        self.mr = self.owner.mr
        self.mw = MW(self.owner.pd, mw_type)

    def bind(self, a: int = 0, b: int = 4096, access: AccessFlags = ALL) -> int:
        return bind(self.owner, self.mw, a, b, access)

    def request(self, opcode: WROpcode, at: int = 0, rkey: int | None = None) -> WCStatus:
        """What comes of an operation of the peer's there, with the window's key or another."""
        rkey = self.mw.rkey if rkey is None else rkey
        return request(self.peer, opcode, self.mr.addr + at, rkey)

    def write(self, at: int = 0, rkey: int | None = None) -> WCStatus:
        return self.request(WROpcode.RDMA_WRITE, at, rkey)

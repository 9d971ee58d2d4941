# SPDX-License-Identifier: MIT
"""Meeting the peer over TCP, as the ping-pong programs of rdma-core do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...context import gid_text
from ...qp import QPAddress
from .._peer.tcp import exchange
from ._end import Plan, open_end
from ._session import Session


@contextmanager
def meet(plan: Plan) -> Iterator[Session]:
    """Exchange addresses with the peer, and connect."""
    with open_end(plan) as end:
        remote = exchange(plan, end.addresses, end.connect)
        local, remote = (_plain(each[: plan.num_qp]) for each in (end.addresses, remote))
        yield Session(end, plan.path_mtu, local, remote)


def _plain(addresses: list[QPAddress]) -> list[dict[str, Any]]:
    return [{**address._asdict(), "gid": gid_text(address.gid)} for address in addresses]

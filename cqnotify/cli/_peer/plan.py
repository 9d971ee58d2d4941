# SPDX-License-Identifier: MIT
"""Where the peer of a command is, and over what to reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GRH: Final = 40  # bytes of routing header before each message that a UD QP receives


@dataclass(frozen=True, kw_only=True)
class PeerPlan:
    """The options of `options.py`, from which the plan of each command derives.

    host: of the server; None makes this end the server.
    port, bind: where the server listens.
    path_mtu: in bytes; None where rdma_cm chooses it.
    events: whether this end sleeps until a completion comes; otherwise it polls.
    timeout: the seconds for the peer to come, and for each message.
    """

    host: str | None
    port: int
    bind: str
    rdma_cm: bool = False
    device: str | None
    port_num: int
    gid_index: int | None
    path_mtu: int | None
    sl: int
    events: bool
    timeout: float

    @property
    def client(self) -> bool:
        """Whether this end connects to the other one; it also sends first."""
        return self.host is not None

# SPDX-License-Identifier: MIT
"""What to run: the options of the command. Both ends need some of them alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .. import CommandError
from .._peer.plan import GRH, PeerPlan

# The options that both ends need alike, by their names.
SHARED: Final = {
    "connection": "connection",
    "size": "sizes",
    "iters": "iters",
    "duration": "duration",
    "qp": "num_qp",
    "tx-depth": "tx_depth",
    "rx-depth": "rx_depth",
    "mtu": "path_mtu",
}
SWITCHES: Final = {
    "bidirectional": "bidirectional",
    "write_with_imm": "immediate",
}
ATOMIC: Final = 8  # bytes


@dataclass(frozen=True, kw_only=True)
class Plan(PeerPlan):
    """What to run. Sizes are in bytes, `duration` is in seconds.

    name: of the command.
    perftest: whether the peer is a program of perftest.
    iters: the messages of each size through each QP; None if the duration ends it.
    immediate: whether writes have immediate data, so that they complete at the peer.
    inline: the largest size that is sent inline.
    connection: the transport service, by the name of its QPType: RC, UC or UD.
    """

    name: str
    op: str
    perftest: bool
    sizes: tuple[int, ...]
    iters: int | None
    duration: float | None
    num_qp: int
    tx_depth: int
    rx_depth: int
    bidirectional: bool
    immediate: bool
    inline: int
    connection: str = "RC"

    @property
    def receives(self) -> bool:
        """Whether messages need receives at the peer."""
        return self.op == "send" or self.immediate

    @property
    def loses(self) -> bool:
        """Whether a message that is lost is not sent again."""
        return self.connection != "RC"

    @property
    def header(self) -> int:
        """The bytes before each message that is received."""
        return GRH if self.connection == "UD" else 0

    def shared(self) -> dict[str, Any]:
        """Return what the peer needs alike, by the names of the options."""
        found: dict[str, Any] = {"command": f"{self.name} --op {self.op}"}
        found.update((name, getattr(self, field)) for name, field in SHARED.items())
        found.update((name, bool(getattr(self, field))) for name, field in SWITCHES.items())
        found["size"] = list(self.sizes)
        return found


def check_shared(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise CommandError, with the difference, unless the peer has the same options."""
    differ = [name for name in ours if theirs.get(name) != ours[name]]
    if not differ:
        return
    if "command" in differ:
        differ = ["command"]
    has, have = (" and ".join(_option(n, told.get(n)) for n in differ) for told in (theirs, ours))
    raise CommandError(f"the peer has {has}, we have {have}: give both the same")


def _option(name: str, value: Any) -> str:
    """Return an option as the user types it."""
    if name == "command":
        return f"`cqnotify {value}`"
    if name in SWITCHES:
        return f"--{name}" if value else f"no --{name}"
    if name == "size" and isinstance(value, list) and len(value) != 1:
        return "--all"
    value = value[0] if isinstance(value, list) else value
    return f"no --{name}" if value is None else f"--{name} {value}"

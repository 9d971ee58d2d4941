# SPDX-License-Identifier: MIT
"""The options of a command that has a peer. They become the fields of a `PeerPlan`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from ...enums import MTU
from .. import CommandParser, add_device, add_port, seconds, whole
from .device import any_address
from .plan import PeerPlan

PORT: Final = 18515  # that of the programs of rdma-core and of perftest
DEFAULT_MTU: Final = 1024  # bytes


def add_path(
    parser: CommandParser, gid: tuple[str, str], sl: tuple[str, str], mtu: str = ""
) -> None:
    """Add the options for a path. They have no defaults, since none goes with rdma_cm.

    gid, sl: the flags of two of them.
    mtu: what the help of the path MTU says in addition.
    """
    add_device(parser)
    add_port(parser, *gid)
    parser.set_defaults(port_num=None)
    parser.add_argument(
        *("-m", "--mtu"),
        dest="path_mtu",
        type=int,
        choices=[mtu.bytes for mtu in MTU],
        help=f"path MTU (default: {DEFAULT_MTU}{mtu})",
    )
    parser.add_argument(
        *sl, dest="sl", metavar="N", type=whole(0, 15), help="service level (default: 0)"
    )


def add_events(parser: CommandParser) -> None:
    """Add the option to sleep."""
    parser.add_argument(
        *("-e", "--events"),
        action="store_true",
        help="sleep until a completion comes, instead of polling",
    )


def add_peer(parser: CommandParser, *rdma_cm: str) -> None:
    """Add the options for where the peer is, and how to meet it; rdma_cm has these flags."""
    parser.add_argument("host", nargs="?", metavar="HOST", help="the server to connect to")
    parser.add_argument(
        *rdma_cm,
        dest="rdma_cm",
        action="store_true",
        help="connect by rdma_cm, instead of exchanging addresses over TCP",
    )
    parser.add_argument(
        *("-p", "--port"),
        metavar="P",
        type=whole(0, 65535),
        default=PORT,
        help=f"port, of TCP or rdma_cm; 0 takes a free one for a server (default: {PORT})",
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        help="address on which a server listens (default: 127.0.0.1; with --rdma-cm all)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=60.0,
        help="give up if no peer or no message comes for S seconds (default: 60)",
    )


def unfit(args: argparse.Namespace) -> str | None:
    """Return why these options do not go together, or None."""
    if args.host is not None and args.bind is not None:
        return "--bind is for a server, and HOST makes it a client"
    if args.host is not None and args.port == 0:
        return "--port 0 is for a server"
    return None


def unfit_for_rdma_cm(args: argparse.Namespace, flags: Mapping[str, str]) -> str | None:
    """Return which option was given that rdma_cm decides on, or None.

    flags: the options, by the names of their fields; that of `rdma_cm` itself is among them.
    """
    for name, flag in flags.items():
        if args.rdma_cm and name != "rdma_cm" and getattr(args, name) is not None:
            return f"{flag} has no effect with {flags['rdma_cm']}: the address determines it"
    return None


def plan_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `PeerPlan` that the options stand for."""
    given = {field.name: getattr(args, field.name) for field in fields(PeerPlan)}
    given["bind"] = args.bind or (any_address() if args.rdma_cm else "127.0.0.1")
    given["port_num"] = args.port_num or 1
    given["sl"] = args.sl or 0
    given["path_mtu"] = None if args.rdma_cm else args.path_mtu or DEFAULT_MTU
    return given

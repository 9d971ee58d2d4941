# SPDX-License-Identifier: MIT
"""The options of both commands, named as those of perftest where they mean the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...enums import MTU
from .. import USAGE, CommandError, CommandParser, add_command, seconds, whole
from .._peer.options import (
    DEFAULT_MTU,
    add_events,
    add_path,
    add_peer,
    plan_fields,
    unfit,
    unfit_for_rdma_cm,
)
from .._plots import add_plot
from ._plan import ATOMIC, Plan

LARGEST: Final = 23  # the power of two with which --all ends
PROGRAMS: Final = {
    ("latency", "send"): "ib_send_lat",
    ("bandwidth", "send"): "ib_send_bw",
    ("bandwidth", "write"): "ib_write_bw",
}
CONNECTIONS: Final = {"send": ("RC", "UC", "UD"), "write": ("RC", "UC")}
FEWEST: Final = 5  # iterations that perftest takes
CHOSEN: Final = {  # by rdma_cm, which has the last one
    "device": "--ib-dev",
    "port_num": "--ib-port",
    "gid_index": "--gid-index",
    "path_mtu": "--mtu",
    "sl": "--sl",
    "rdma_cm": "--rdma_cm",
}
DESCRIPTION: Final = """\
{what}
Without HOST the command is the server, else the client of the server there. Options have the names
of perftest's where they mean the same. Both ends need the same operation, sizes, numbers and
depths, and report it if they differ. Each end may sleep or poll. With --perftest the other end is a
program of perftest, which does not compare the options.

The ends find each other over TCP, without encryption or authentication. A server listens on the
loopback interface by default.

With --rdma_cm, rdma_cm connects them: HOST is an address of an interface that has an RDMA device,
and determines the devices. A server listens on all addresses by default.
"""


def add_options(
    commands: Any,
    name: str,
    what: str,
    details: str,
    ops: Sequence[str],
    run: Callable[[argparse.Namespace], int],
) -> CommandParser:
    """Add a command with the options that both have, and return its parser."""
    parser = add_command(commands, name, what, run, DESCRIPTION.format(what=details))
    parser.set_defaults(command=name)
    parser.add_argument(
        "--op", choices=ops, default="send", help="the operation to measure (default: send)"
    )
    parser.add_argument(
        *("-c", "--connection"),
        choices=CONNECTIONS["send"],
        default="RC",
        help="the transport service: UC for send and write, UD for send (default: RC)",
    )
    _add_traffic(parser)
    add_path(parser, gid=("-x", "--gid-index"), sl=("-S", "--sl"))
    add_peer(parser, "-R", "--rdma_cm", "--rdma-cm")
    parser.add_argument(
        "--perftest",
        action="store_true",
        help="the peer is ib_send_lat, ib_send_bw or ib_write_bw, with the same -c, -s and -n",
    )
    parser.add_argument(
        *("-F", "--CPU-freq"),
        action="store_true",
        help="no effect; accepted because scripts for perftest pass it",
    )
    add_plot(parser, "the figures")
    return parser


def _add_traffic(parser: CommandParser) -> None:
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("-s", "--size", metavar="N", type=whole(), help="bytes of a message")
    sizes.add_argument(
        "-a",
        "--all",
        action="store_true",
        help=f"all sizes from 2 to 2^{LARGEST} bytes; UD: to the MTU",
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        *("-n", "--iters"), metavar="N", type=whole(), help="messages of a size (default: 1000)"
    )
    ends.add_argument(
        "-D", "--duration", metavar="S", type=seconds, help="seconds for a size, instead of -n"
    )
    add_events(parser)
    parser.add_argument(
        *("-I", "--inline_size"),
        dest="inline",
        metavar="N",
        type=whole(0),
        default=0,
        help="send messages of up to N bytes inline (default: 0)",
    )
    parser.add_argument(
        "--write_with_imm",
        dest="immediate",
        action="store_true",
        help="writes have immediate data, so that they complete at the peer",
    )


def plan_of(args: argparse.Namespace, size: int, **own: Any) -> Plan:
    """Return the plan of the arguments; CommandError if they do not go together.

    size: the bytes of a message, unless the user chose.
    own: the fields of the plan that are not of the options of both commands.
    """
    _refuse_combinations(args)
    return Plan(
        **plan_fields(args),
        name=args.command,
        op=args.op,
        perftest=args.perftest,
        sizes=_sizes(args, size),
        connection=args.connection,
        iters=None if args.duration else args.iters or 1000,
        duration=args.duration,
        inline=args.inline,
        **own,
    )


def _sizes(args: argparse.Namespace, size: int) -> tuple[int, ...]:
    if args.op == "atomic":
        return (ATOMIC,)
    largest, is_ud = _largest(args), args.connection == "UD"
    if args.all:
        return tuple(1 << power for power in range(1, LARGEST + 1) if 1 << power <= largest)
    return (args.size or (min(size, largest, DEFAULT_MTU) if is_ud else size),)


def _largest(args: argparse.Namespace) -> int:
    """Return the bytes of the largest message, as far as the options tell."""
    if args.connection != "UD":
        return 1 << LARGEST
    return max(mtu.bytes for mtu in MTU) if args.rdma_cm else args.path_mtu or DEFAULT_MTU


def _refuse_combinations(args: argparse.Namespace) -> None:
    wrong = unfit_for_rdma_cm(args, CHOSEN) or unfit(args)
    if wrong:
        pass
    elif args.connection not in CONNECTIONS.get(args.op, ("RC",)):
        fit = " and ".join(CONNECTIONS.get(args.op, ("RC",)))
        wrong = f"--connection {args.connection} does not go with --op {args.op}, only {fit}"
    elif args.connection == "UC" and args.rdma_cm:
        wrong = "--connection UC does not go with --rdma_cm, which connects no UC QPs"
    elif args.connection == "UD" and args.size is not None and args.size > _largest(args):
        wrong = f"--size is {args.size}: the limit of UD is the MTU, {_largest(args)} bytes (--mtu)"
    elif args.op == "atomic" and (args.all or args.size not in (None, ATOMIC)):
        wrong = f"an atomic operation has {ATOMIC} bytes"
    elif args.immediate and args.op != "write":
        wrong = "--write_with_imm is for --op write"
    elif args.inline and args.op not in ("send", "write"):
        wrong = "--inline_size is for --op send and write"
    elif args.perftest:
        wrong = _refuse_with_perftest(args)
    if wrong:
        raise CommandError(wrong, USAGE)


def _refuse_with_perftest(args: argparse.Namespace) -> str | None:
    """Return why an option does not go with --perftest."""
    if PROGRAMS.get((args.command, args.op)) is None:
        programs = [f"{name} --op {op}: {program}" for (name, op), program in PROGRAMS.items()]
        return f"--perftest is for {', '.join(programs)}"
    others = {
        "--rdma_cm": args.rdma_cm,
        "--all": args.all,
        "--duration": args.duration is not None,
        "--write_with_imm": args.immediate,
        "--bidirectional": getattr(args, "bidirectional", False),
        "--qp": getattr(args, "num_qp", 1) != 1,
    }
    for option, given in others.items():
        if given:
            return f"{option} does not go with --perftest"
    if args.iters is not None and args.iters < FEWEST:
        return f"--iters is {args.iters}: perftest needs {FEWEST} at least"
    return None

# SPDX-License-Identifier: MIT
"""The options of both commands, named as those of perftest where they mean the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...enums import MTU
from .. import USAGE, CommandError, CommandParser, add_command, add_device, seconds, whole
from .._meeting import everywhere
from .._plots import add_plot
from ._plan import ATOMIC, Plan

PORT: Final = 18515  # that of perftest's programs
LARGEST: Final = 23  # the power of two with which --all ends
PROGRAMS: Final = {
    ("latency", "send"): "ib_send_lat",
    ("bandwidth", "send"): "ib_send_bw",
    ("bandwidth", "write"): "ib_write_bw",
}
CONNECTIONS: Final = {"send": ("RC", "UC", "UD"), "write": ("RC", "UC")}
DEFAULT_MTU: Final = 1024  # bytes
FEWEST: Final = 5  # iterations that perftest takes
CHOSEN: Final = {  # by rdma_cm
    "device": "--ib-dev",
    "port_num": "--ib-port",
    "gid_index": "--gid-index",
    "path_mtu": "--mtu",
    "sl": "--sl",
}
DESCRIPTION: Final = """\
{what}
Without HOST the command is the server, else the client of the server there. Options have the names
of perftest's where they mean the same. Both ends need the same operation, sizes, numbers and
depths, and say so if they differ. Each end may sleep or poll. With --perftest the other end is a
program of perftest, which does not say what it was told.

The ends find each other over TCP, without encryption or authentication. A server listens on the
loopback interface by default.

With --rdma_cm, rdma_cm connects them: HOST is an address of an interface that has an RDMA device,
and chooses the devices. A server listens on all addresses by default.
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
    _add_path(parser)
    _add_peer(parser)
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
    parser.add_argument(
        *("-e", "--events"),
        action="store_true",
        help="sleep until a completion comes, instead of polling",
    )
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


def _add_path(parser: CommandParser) -> None:
    add_device(parser)
    numbers: dict[tuple[str, str], tuple[str, Any, str]] = {
        ("-i", "--ib-port"): ("port_num", whole(), "port of the device (default: 1)"),
        ("-x", "--gid-index"): (
            *("gid_index", whole(0, 255)),
            "our GID's index (default: the first RoCE v2)",
        ),
        ("-S", "--sl"): ("sl", whole(0, 15), "service level (default: 0)"),
    }
    for names, (dest, kind, text) in numbers.items():
        parser.add_argument(*names, dest=dest, metavar="N", type=kind, help=text)
    parser.add_argument(
        *("-m", "--mtu"),
        dest="path_mtu",
        type=int,
        choices=[mtu.bytes for mtu in MTU],
        help=f"path MTU (default: {DEFAULT_MTU})",
    )


def _add_peer(parser: CommandParser) -> None:
    parser.add_argument("host", nargs="?", metavar="HOST", help="the server to connect to")
    parser.add_argument(
        *("-R", "--rdma_cm", "--rdma-cm"),
        dest="rdma_cm",
        action="store_true",
        help="connect by rdma_cm, instead of exchanging addresses over TCP",
    )
    parser.add_argument(
        "--perftest",
        action="store_true",
        help="the peer is ib_send_lat, ib_send_bw or ib_write_bw, with the same -c, -s and -n",
    )
    parser.add_argument(
        *("-F", "--CPU-freq"),
        action="store_true",
        help="means nothing, and is accepted since scripts for perftest have it",
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
        help="address on which a server listens (default: 127.0.0.1; with --rdma_cm all)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=60.0,
        help="give up if no peer or no message comes for S seconds (default: 60)",
    )


def plan_of(args: argparse.Namespace, size: int, **fields: Any) -> Plan:
    """Return the plan of the arguments; CommandError if they do not go together.

    size: the bytes of a message, unless the user chose.
    fields: those of the plan that the options of both commands do not say.
    """
    _refuse_combinations(args)
    return Plan(
        name=args.command,
        op=args.op,
        host=args.host,
        port=args.port,
        bind=args.bind or (everywhere() if args.rdma_cm else "127.0.0.1"),
        rdma_cm=args.rdma_cm,
        perftest=args.perftest,
        device=args.device,
        port_num=args.port_num or 1,
        gid_index=args.gid_index,
        path_mtu=None if args.rdma_cm else args.path_mtu or DEFAULT_MTU,
        sl=args.sl or 0,
        sizes=_sizes(args, size),
        connection=args.connection,
        iters=None if args.duration else args.iters or 1000,
        duration=args.duration,
        events=args.events,
        inline=args.inline,
        timeout=args.timeout,
        **fields,
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
    wrong = None
    given = [option for name, option in CHOSEN.items() if getattr(args, name) is not None]
    if args.rdma_cm and given:
        wrong = f"{given[0]} means nothing to --rdma_cm: the address decides on it"
    elif args.host is not None and args.bind is not None:
        wrong = "--bind is for a server, and HOST makes it a client"
    elif args.host is not None and args.port == 0:
        wrong = "--port 0 is for a server"
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

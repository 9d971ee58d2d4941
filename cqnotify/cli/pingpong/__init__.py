# SPDX-License-Identifier: MIT
"""`cqnotify pingpong`: a latency test, with itself or with rdma-core's ping-pong programs."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, Final

from .. import (
    OK,
    USAGE,
    CommandError,
    CommandParser,
    add_command,
    add_connection,
    add_device,
    device_names,
    print_json,
    seconds,
    whole,
)
from .._meeting import everywhere
from .._plots import add_plot, need_matplotlib
from ._end import KINDS, SRQ_RECORDS, Plan
from ._report import save_plot

DESCRIPTION: Final = """\
Ping-pong latency test. Without HOST the command is the server, else the client of the server there.
Either end may be ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong or ibv_srq_pingpong, by --type.
Both ends need the same --type, --size, --mtu, --iters and --num-qp. On RoCE, rdma-core's programs
need -g with a GID of the same kind as ours: both IPv4, or both link-local. "cqnotify devices" lists
the GIDs; ours is by default the first RoCE v2 one.

The addresses of the queue pairs are exchanged over TCP, without encryption or authentication. A
server listens on the loopback interface by default.

With --rdma-cm both ends are cqnotify's, of type rc or ud, and rdma_cm connects them: HOST is an
address of an interface that has an RDMA device, and chooses the devices. A server listens on all
addresses by default, and turns away a client with another --size, --iters or --chk.
"""
PORT: Final = 18515  # that of rdma-core's programs
BY_RDMA_CM: Final = ("rc", "ud")
CHOSEN: Final = {  # by rdma_cm
    "device": "--device",
    "port_num": "--ib-port",
    "gid_index": "--gid-idx",
    "path_mtu": "--mtu",
    "sl": "--sl",
}


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "measure a ping-pong, also with rdma-core's ibv_*_pingpong"
    parser = add_command(commands, "pingpong", what, run, DESCRIPTION)
    parser.add_argument(
        "--type",
        dest="service",
        choices=KINDS,
        default="rc",
        help="the transport service, or rc with an SRQ (default: rc)",
    )
    add_device(parser)
    _add_traffic(parser)
    _add_peer(parser)
    add_plot(parser, "the latencies")


def _add_traffic(parser: CommandParser) -> None:
    add_connection(parser, "port_num", "gid_index", "path_mtu", "sl")
    parser.set_defaults(port_num=None, sl=None)  # so that --rdma-cm can tell what was given
    numbers = {
        ("-s", "--size"): (whole(), None, "bytes of a message (default: 4096; ud: 1024)"),
        ("-n", "--iters"): (
            whole(),
            1000,
            "messages each way, over all QPs together (default: 1000)",
        ),
        ("-r", "--rx-depth"): (whole(), 500, "receives to keep posted (default: 500)"),
        ("-q", "--num-qp"): (whole(), None, "number of QPs, only for srq (default: 16)"),
    }
    for names, (kind, default, text) in numbers.items():
        parser.add_argument(*names, metavar="N", type=kind, default=default, help=text)
    parser.add_argument(
        "-e",
        "--events",
        action="store_true",
        help="sleep until a completion comes, instead of polling",
    )
    parser.add_argument(
        *("-c", "--chk"),
        dest="check",
        action="store_true",
        help="check every byte; both ends need it",
    )


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", nargs="?", metavar="HOST", help="the server to connect to")
    parser.add_argument(
        *("-R", "--rdma-cm"),
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


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    plan = _plan(args)
    if args.plot:
        need_matplotlib()
    device_names(plan.device)
    from ._play import hold  # which imports asyncio

    report = hold(plan)
    if args.json:
        print_json(report.as_dict())
    else:
        print(report.as_text())
    if args.plot:
        save_plot(report, args.plot)
    return OK


def _plan(args: argparse.Namespace) -> Plan:
    """Return the plan of the arguments, which have the names of its fields."""
    _refuse_combinations(args)
    ud, srq = args.service == "ud", args.service == "srq"
    num_qp = (args.num_qp or 16) if srq else 1
    if args.rx_depth < num_qp:
        raise CommandError(f"--rx-depth is {args.rx_depth}: {num_qp} QPs need {num_qp}", USAGE)
    given = {field.name: getattr(args, field.name) for field in fields(Plan)}
    given["port_num"] = args.port_num or 1
    given["sl"] = args.sl or 0
    given["bind"] = args.bind or (everywhere() if args.rdma_cm else "127.0.0.1")
    given["size"] = args.size or (1024 if ud else 4096)
    given["path_mtu"] = None if ud or args.rdma_cm else args.path_mtu or 1024
    given["num_qp"] = num_qp
    return Plan(**given)


def _refuse_with_rdma_cm(args: argparse.Namespace) -> str | None:
    """Return why an option does not go with --rdma-cm."""
    if args.service not in BY_RDMA_CM:
        return f"--rdma-cm connects {' and '.join(BY_RDMA_CM)}, not {args.service}"
    for name, option in CHOSEN.items():
        if getattr(args, name) is not None:
            return f"{option} means nothing to --rdma-cm: the address decides on it"
    return None


def _refuse_combinations(args: argparse.Namespace) -> None:
    wrong = _refuse_with_rdma_cm(args) if args.rdma_cm else None
    if wrong:
        pass
    elif args.num_qp is not None and args.service != "srq":
        wrong = "--num-qp is for --type srq"
    elif args.num_qp is not None and args.num_qp >= SRQ_RECORDS:
        wrong = f"--num-qp is {args.num_qp}: it must be below {SRQ_RECORDS}"
    elif args.path_mtu is not None and args.service == "ud":
        wrong = "--mtu means nothing to --type ud: a message is one packet"
    elif args.host is not None and args.bind is not None:
        wrong = "--bind is for a server, and HOST makes it a client"
    elif args.host is not None and args.port == 0:
        wrong = "--port 0 is for a server"
    if wrong:
        raise CommandError(wrong, USAGE)

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
    device_names,
    print_json,
    whole,
)
from .._peer.options import (
    add_events,
    add_path,
    add_peer,
    plan_fields,
    unfit,
    unfit_for_rdma_cm,
)
from .._plots import add_plot, need_matplotlib
from ._end import KINDS, SRQ_RECORDS, Plan
from ._report import save_plot

DESCRIPTION: Final = """\
Ping-pong latency test. Without HOST the command is the server, else the client of the server there.
Depending on --type, the other end may be ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong or
ibv_srq_pingpong. Both ends need the same --type, --size, --mtu, --iters and --num-qp. On RoCE,
rdma-core's programs need -g with a GID of the same kind as ours: both IPv4, or both link-local.
"cqnotify devices" lists the GIDs; ours is by default the first RoCE v2 one.

The addresses of the queue pairs are exchanged over TCP, without encryption or authentication. A
server listens on the loopback interface by default.

With --rdma-cm both ends are cqnotify's, of type rc or ud, and rdma_cm connects them: HOST is an
address of an interface that has an RDMA device, and determines the devices. A server listens on all
addresses by default, and rejects a client with another --size, --iters or --chk.
"""
BY_RDMA_CM: Final = ("rc", "ud")
CHOSEN: Final = {  # by rdma_cm, which has the last one
    "device": "--device",
    "port_num": "--ib-port",
    "gid_index": "--gid-idx",
    "path_mtu": "--mtu",
    "sl": "--sl",
    "rdma_cm": "--rdma-cm",
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
    add_path(parser, gid=("-g", "--gid-idx"), sl=("-l", "--sl"), mtu="; not for ud")
    _add_traffic(parser)
    add_peer(parser, "-R", "--rdma-cm")
    add_plot(parser, "the latencies")


def _add_traffic(parser: CommandParser) -> None:
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
    add_events(parser)
    parser.add_argument(
        *("-c", "--chk"),
        dest="check",
        action="store_true",
        help="check every byte; both ends need it",
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
    given |= plan_fields(args)
    given["size"] = args.size or (1024 if ud else 4096)
    given["num_qp"] = num_qp
    if ud:
        given["path_mtu"] = None
    return Plan(**given)


def _refuse_combinations(args: argparse.Namespace) -> None:
    wrong = unfit_for_rdma_cm(args, CHOSEN)
    if args.rdma_cm and args.service not in BY_RDMA_CM:
        wrong = f"--rdma-cm connects {' and '.join(BY_RDMA_CM)}, not {args.service}"
    elif wrong:
        pass
    elif args.num_qp is not None and args.service != "srq":
        wrong = "--num-qp is for --type srq"
    elif args.num_qp is not None and args.num_qp >= SRQ_RECORDS:
        wrong = f"--num-qp is {args.num_qp}: it must be below {SRQ_RECORDS}"
    elif args.path_mtu is not None and args.service == "ud":
        wrong = "--mtu has no effect with --type ud: a message is one packet"
    wrong = wrong or unfit(args)
    if wrong:
        raise CommandError(wrong, USAGE)

# SPDX-License-Identifier: MIT
"""The command line: `cqnotify`, `python -m cqnotify`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

from . import VerbsError, __version__, demo
from .attrs import Device, GIDEntry
from .context import Context, devices
from .enums import MTU

OK, FAILED, USAGE, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = """\
exit codes:
  0    everything went well
  1    the traffic failed, or brought wrong bytes; in the lab: a receiver did not sleep
  2    wrong usage
  3    nothing to run on: no RDMA device, or a program is missing
  130  interrupted by Ctrl-C
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return INTERRUPTED
    except demo.CannotRunError as e:
        return _complain(e, CANNOT_RUN)
    except (demo.DemoError, VerbsError, LookupError) as e:
        return _complain(e, FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cqnotify",
        description="RDMA completion notification.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cqnotify {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_devices(commands)
    _add_demo(commands)
    return parser


def _add_devices(commands: Any) -> None:
    what = "list the RDMA devices, their ports and their GIDs"
    parser = commands.add_parser("devices", help=what, description=what)
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    parser.set_defaults(run=_run_devices)


def _add_demo(commands: Any) -> None:
    what = "compare sleeping until a completion comes with polling for it"
    parser = commands.add_parser(
        "demo",
        help=what,
        description=demo.__doc__,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", metavar="D", help="our device (default: the first)")
    parser.add_argument(
        "--peer-device", metavar="D2", help="the peers' device (default: the same; lab: the second)"
    )
    parser.add_argument(
        "--messages", metavar="N", type=_positive, default=1000, help="per run (default: 1000)"
    )
    parser.add_argument(
        "--interval",
        metavar="MS",
        type=_milliseconds,
        default=0.004,
        help="between the stream's messages (default: 4)",
    )
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    parser.set_defaults(run=_run_demo)


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _milliseconds(text: str) -> float:
    if not 0 <= (value := float(text)) < 60_000:
        raise argparse.ArgumentTypeError(f"{text} is not 0 to 60000 milliseconds")
    return value / 1000


def _run_demo(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    report = demo.run(args.device, args.peer_device, args.messages, args.interval)
    print(json.dumps(report.as_dict(), indent=2) if args.json else demo.format_report(report))
    return FAILED if report.problems else OK


def _run_devices(args: argparse.Namespace) -> int:
    found = [_describe(device) for device in devices()]
    if args.json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("this machine has no RDMA device", file=sys.stderr)
    for device in [] if args.json else found:
        print(_format_device(device))
    return OK if found else CANNOT_RUN


def _describe(device: Device) -> dict[str, Any]:
    with Context(device) as context:
        attr = context.query_device()
        ports = [_describe_port(context, n) for n in range(1, attr.phys_port_cnt + 1)]
    described = {**_plain(device._asdict()), **_plain(attr._asdict()), "ports": ports}
    return {**described, "guid": f"{device.guid:016x}"}


def _describe_port(context: Context, port_num: int) -> dict[str, Any]:
    gids = [_describe_gid(entry) for entry in context.gid_table(port_num)]
    return {"port_num": port_num, **_plain(context.query_port(port_num)._asdict()), "gids": gids}


def _describe_gid(entry: GIDEntry) -> dict[str, Any]:
    return {**_plain(entry._asdict()), "gid": str(entry.gid)}


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Enums by their names, an MTU in bytes."""
    plain = {name: getattr(value, "name", value) for name, value in fields.items()}
    mtus = {name: value.bytes for name, value in fields.items() if isinstance(value, MTU)}
    return {**plain, **mtus}


def _format_device(device: dict[str, Any]) -> str:
    title = f"{device['name']}: {device['node_type']}, {device['transport_type']}"
    lines = [f"{title}, guid {device['guid']}, firmware {device['fw_ver'] or 'unknown'}"]
    for port in device["ports"]:
        lines.append(
            f"  port {port['port_num']}: {port['state']}, {port['link_layer']}, "
            f"mtu {port['active_mtu']} of {port['max_mtu']}, lid {port['lid']}"
        )
        for gid in port["gids"]:
            netdev = gid["netdev"] or "-"
            lines.append(f"    gid {gid['index']}: {gid['gid']}  {gid['gid_type']}  {netdev}")
    return "\n".join(lines)


def _complain(error: Exception, code: int) -> int:
    print(f"cqnotify: {error}", file=sys.stderr)
    return code


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)  # as an exception, so that children are killed on the way out


if __name__ == "__main__":
    sys.exit(main())

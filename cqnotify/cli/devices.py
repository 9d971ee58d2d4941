# SPDX-License-Identifier: MIT
"""`cqnotify devices`: the RDMA devices, their ports and their GIDs."""

from __future__ import annotations

import argparse
from enum import IntFlag
from ipaddress import IPv6Address
from typing import Any, Final

from ..context import Context, devices, gid_text
from ..enums import MTU
from . import OK, add_command, add_device, device_names, print_json
from ._terminal import paint

BITS: Final = ("device_cap_flags", "max_mr_size", "page_size_cap", "port_cap_flags", "vendor_id")


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "list the RDMA devices, their ports and their GIDs"
    parser = add_command(commands, "devices", what, run)
    parser.add_argument(
        "names", nargs="*", metavar="DEVICE", help="list only these, as with -d (default: all)"
    )
    add_device(parser, "all")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print everything that ibv_query_device and ibv_query_port return",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    found = [_describe(name) for name in _chosen(args)]
    if args.json:
        print_json(found)
    else:
        print("\n".join(line for device in found for line in _device_lines(device, args.verbose)))
    return OK


def _chosen(args: argparse.Namespace) -> list[str]:
    """Return the names of the devices to list: those of the arguments, each once, or all."""
    wanted = [*args.names, *([args.device] if args.device else [])]
    if not wanted:
        return device_names()
    return list(dict.fromkeys(name for one in wanted for name in device_names(one)))


# ---- as JSON --------------------------------------------------------------------------------


def _describe(name: str) -> dict[str, Any]:
    (device,) = [device for device in devices() if device.name == name]
    with Context(device) as context:
        attr = context.query_device()
        return {
            **_plain(device),
            **_plain(attr),
            "num_comp_vectors": context.num_comp_vectors,
            "ports": [_describe_port(context, n) for n in range(1, attr.phys_port_cnt + 1)],
        }


def _describe_port(context: Context, port_num: int) -> dict[str, Any]:
    gids = [_plain(entry) for entry in context.gid_table(port_num)]
    return {"port_num": port_num, **_plain(context.query_port(port_num)), "gids": gids}


def _plain(attr: Any) -> dict[str, Any]:
    """Return a struct's fields: enums by name, flags and MTUs as numbers, GUIDs in hex."""
    return {name: _plain_value(name, value) for name, value in attr._asdict().items()}


def _plain_value(name: str, value: Any) -> Any:
    if isinstance(value, MTU):
        return value.bytes
    if isinstance(value, IPv6Address):
        return gid_text(value)
    if name.endswith("guid"):
        return f"{value:016x}"
    if isinstance(value, IntFlag):
        return int(value)  # only some Python versions have names for combined flags
    return getattr(value, "name", value)


# ---- for a terminal -------------------------------------------------------------------------


def _device_lines(device: dict[str, Any], verbose: bool) -> list[str]:
    title = f"{paint(device['name'], 'bold')}: {device['node_type']}, {device['transport_type']}"
    lines = [
        f"{title}, guid {device['node_guid']}, firmware {device['fw_ver'] or 'unknown'}",
        f"  vendor {device['vendor_id']:#x}, part {device['vendor_part_id']}, hardware "
        f"{device['hw_ver']:#x}, system image {device['sys_image_guid']}, "
        f"ports {device['phys_port_cnt']}",
    ]
    if verbose:
        lines += _all_lines(device, "    ")
    for port in device["ports"]:
        lines += _port_lines(port, verbose)
    return lines


def _port_lines(port: dict[str, Any], verbose: bool) -> list[str]:
    color = "green" if port["state"] == "ACTIVE" else "red"
    lines = [
        f"  port {port['port_num']}: {paint(port['state'], color)}, {port['link_layer']}, "
        f"mtu {port['active_mtu']} of {port['max_mtu']}, lid {port['lid']}, lmc {port['lmc']}, "
        f"sm_lid {port['sm_lid']}"
    ]
    if verbose:
        lines += _all_lines(port, "      ")
    for gid in port["gids"]:
        netdev = gid["netdev"] or "-"
        lines.append(f"    gid {gid['index']}: {gid['gid']}  {gid['gid_type']}  {netdev}")
    return lines


def _all_lines(fields: dict[str, Any], indent: str) -> list[str]:
    plain = {name: value for name, value in fields.items() if not isinstance(value, list)}
    width = max(map(len, plain))
    return [f"{indent}{name:{width}}  {_shown(name, value)}" for name, value in plain.items()]


def _shown(name: str, value: Any) -> str:
    """Return the value as text, sets of bits in hex."""
    bits = name in BITS and isinstance(value, int)
    return f"{value:#x}" if bits else str(value)

# SPDX-License-Identifier: MIT
"""`cqnotify devices`: the RDMA devices, their ports and their GIDs."""

from __future__ import annotations

import argparse
from typing import Any

from ..attrs import GIDEntry
from ..context import Context, devices
from ..enums import MTU
from . import OK, add_command, add_device, device_names, print_json


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "list the RDMA devices, their ports and their GIDs"
    add_device(add_command(commands, "devices", what, run), "all")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    found = [_describe(name) for name in device_names(args.device)]
    if args.json:
        print_json(found)
    else:
        print("\n".join(map(_format_device, found)))
    return OK


def _describe(name: str) -> dict[str, Any]:
    (device,) = [device for device in devices() if device.name == name]
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

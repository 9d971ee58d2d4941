# SPDX-License-Identifier: MIT
"""`cqnotify devices`: the RDMA devices, their ports and their GIDs."""

from __future__ import annotations

import argparse
from enum import IntFlag
from ipaddress import IPv6Address
from typing import Any, Final

from ..context import Context, devices, gid_text
from ..enums import MTU, DeviceCapFlags
from . import FAILED, OK, add_command, add_device, device_names, note, print_json
from ._terminal import paint

BITS: Final = ("max_mr_size", "page_size_cap", "vendor_id")

# Names that the manual has for numbers, and the library's enums have not: of bits, by their place,
# and of values.
PORT_CAPS: Final = {
    **{1: "SM", 2: "NOTICE_SUP", 3: "TRAP_SUP", 4: "OPT_IPD_SUP", 5: "AUTO_MIGR_SUP"},
    **{6: "SL_MAP_SUP", 7: "MKEY_NVRAM", 8: "PKEY_NVRAM", 9: "LED_INFO_SUP"},
    **{11: "SYS_IMAGE_GUID_SUP", 12: "PKEY_SW_EXT_PORT_TRAP_SUP", 14: "EXTENDED_SPEEDS_SUP"},
    **{15: "CAP_MASK2_SUP", 16: "CM_SUP", 17: "SNMP_TUNNEL_SUP", 18: "REINIT_SUP"},
    **{19: "DEVICE_MGMT_SUP", 20: "VENDOR_CLASS_SUP", 21: "DR_NOTICE_SUP"},
    **{22: "CAP_MASK_NOTICE_SUP", 23: "BOOT_MGMT_SUP", 24: "LINK_LATENCY_SUP"},
    **{25: "CLIENT_REG_SUP", 26: "IP_BASED_GIDS"},
}
PORT_CAPS2: Final = {
    **{0: "SET_NODE_DESC_SUP", 1: "INFO_EXT_SUP", 2: "VIRT_SUP", 3: "SWITCH_PORT_STATE_TABLE_SUP"},
    **{4: "LINK_WIDTH_2X_SUP", 5: "LINK_SPEED_HDR_SUP", 10: "LINK_SPEED_NDR_SUP"},
}
DEVICE_CAPS: Final = {
    flag.bit_length() - 1: name for name, flag in DeviceCapFlags.__members__.items()
}
SETS: Final = {
    "device_cap_flags": DEVICE_CAPS,
    "port_cap_flags": PORT_CAPS,
    "port_cap_flags2": PORT_CAPS2,
    "flags": {0: "GRH_REQUIRED"},
}
VALUES: Final = {
    "phys_state": {
        **{1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORT_CONFIGURATION_TRAINING"},
        **{5: "LINK_UP", 6: "LINK_ERROR_RECOVERY", 7: "PHY_TEST"},
    },
    "active_width": {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"},
    "active_speed": {
        **{0: "unknown", 1: "2.5 Gb/s", 2: "5 Gb/s", 4: "10 Gb/s (QDR)", 8: "10 Gb/s (FDR10)"},
        **{16: "14 Gb/s", 32: "25 Gb/s", 64: "50 Gb/s", 128: "100 Gb/s", 256: "200 Gb/s"},
    },
    "max_vl_num": {1: "VL0", 2: "VL0-1", 3: "VL0-3", 4: "VL0-7", 5: "VL0-14"},
}


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
    found, code = [], OK
    for name in _chosen(args):
        try:
            found.append(_describe(name))
        except OSError as e:  # the others may be opened all the same
            note(f"{name}: {e}")
            code = FAILED
    if args.json:
        print_json(found)
    elif found:
        print("\n".join(line for device in found for line in _device_lines(device, args.verbose)))
    return code


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
    gids = [_plain(entry) for entry in context.query_gid_table(port_num)]
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
    """Return the value as text, with what the manual calls it."""
    if name in BITS:
        return f"{value:#x}"
    if name in SETS:
        return ", ".join(_bit_names(value, SETS[name])) or "none"
    if name in VALUES and value in VALUES[name]:
        return f"{value}: {VALUES[name][value]}"
    return str(value)


def _bit_names(bits: int, names: dict[int, str]) -> list[str]:
    """Return the names of those that are set, and in hex what is left."""
    known = [bit for bit in names if bits >> bit & 1]
    left = bits & ~sum(1 << bit for bit in known)
    return [*(names[bit] for bit in known), *([f"{left:#x}"] if left else [])]

# SPDX-License-Identifier: MIT
"""The device: the core's Context, whose queries return named tuples, and searches in its tables."""

from __future__ import annotations

import errno

from . import _core, enums

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address
    from typing import NoReturn, Self

    from .attrs import Device, DeviceAttr, DeviceAttrEx, GIDEntry, RTValues
    from .enums import ForkStatus, GIDType, TransportType

__all__ = ["Context", "devices", "fork_status"]


def devices() -> list[Device]:
    """List the RDMA devices of this machine; where there is none, the list is empty.

    Raises VerbsError where they cannot be listed, for want of descriptors (EMFILE) for example.
    Wraps ibv_get_device_list(3).
    """
    from ._attr_conversion import device

    return [device(raw) for raw in _core.list_devices()]


def fork_status() -> ForkStatus:
    """Return whether the memory that this process has registered survives a fork.

    UNNEEDED: the kernel copies pinned pages at a fork, as Linux does from 5.13 on. ENABLED: the
    library keeps registered pages out of the child; on older kernels the first Context of a process
    turns that on. DISABLED: registered memory does not survive; before the first Context this is
    not decided yet. Wraps ibv_is_fork_initialized(3).
    """
    return enums.ForkStatus(_core.fork_status())


class Context(_core.Context):
    """An open device.

    name: the device's name, such as "rxe0", or a Device that `devices()` listed; by default the
        first device that can be opened.

    Leaving `with Context(...)` closes the device and everything that was made from it. The first
    Context of a process makes forks safe, see `fork_status`, or warns that it cannot
    (RuntimeWarning).

    Raises VerbsError where the device cannot be opened: ENODEV if there is none of that name,
    ESTALE if it was renamed after this process had first listed the devices, because libibverbs
    would take the device that has the old name for it. Wraps ibv_open_device(3).
    """

    __slots__ = ()

    def __new__(cls, name: str | Device | None = None) -> Self:
        if name is not None and not isinstance(name, str):
            from .attrs import Device

            name = name.name if isinstance(name, Device) else name
        return super().__new__(cls, name)

    @property
    def transport_type(self) -> TransportType | int:
        """The protocol on the wire: IB, for InfiniBand and RoCE, or IWARP."""
        return enums.enum_or_int(enums.TransportType, super().transport_type)

    def query_device(self) -> DeviceAttr:
        """Return the device's limits and capabilities. Wraps ibv_query_device(3)."""
        from ._attr_conversion import device_attr

        return device_attr(super().query_device())

    def query_device_ex(self) -> DeviceAttrEx:
        """Return what `query_device` returns, and later capabilities such as on-demand paging.

        Wraps ibv_query_device_ex(3).
        """
        from ._attr_conversion import device_attr_ex

        return device_attr_ex(super().query_device_ex())

    def query_rt_values(self) -> RTValues:
        """Return the time of the device's clock, in the ticks that `completion_ts` counts.

        Raises VerbsError (EOPNOTSUPP) where the clock cannot be read.
        Wraps ibv_query_rt_values_ex(3).
        """
        from .attrs import RTValues

        return RTValues(**super().query_rt_values())

    def get_pkey_index(self, pkey: int, port_num: int = 1) -> int:
        """Return the index of a P_Key in a port's table, for `pkey_index` of a QP.

        pkey: the P_Key. As in ibv_get_pkey_index(3), the membership bit 0x8000 must match.
        port_num: the port, counting from 1.

        Raises LookupError, which lists the port's P_Keys, where the table does not have it. Wraps
        ibv_query_pkey(3).
        """
        if not isinstance(pkey, int):
            raise TypeError(f"pkey must be an integer, not {type(pkey).__name__}")
        if not 0 <= pkey <= 0xFFFF:
            raise ValueError(f"pkey is {pkey}: it must be 0 to 65535")
        table = [
            self.query_pkey(index, port_num)
            for index in range(self.query_port(port_num).pkey_tbl_len)
        ]
        if pkey not in table:
            entries = ", ".join(f"[{i}] {value:#06x}" for i, value in enumerate(table) if value)
            where = f"{self.name} port {port_num}"
            raise LookupError(f"no P_Key {pkey:#06x}; {where} has {entries or 'none'}")
        return table.index(pkey)

    def query_gid_table(self, port_num: int | None = None) -> list[GIDEntry]:
        """Return the valid GIDs, sorted by port and index.

        port_num: the port, counting from 1; by default all ports.

        Raises ValueError where there is no such port. Wraps ibv_query_gid_table(3).
        """
        table = super().query_gid_table()
        wanted = [entry for entry in table if port_num in (None, entry.port_num)]
        if port_num is not None and not wanted:
            self.query_port(port_num)  # is there such a port?
        return sorted(wanted, key=lambda entry: (entry.port_num, entry.index))

    def _raise_no_gid(self, index: int, port_num: int) -> NoReturn:
        """For `query_gid`."""
        table = self.query_gid_table(port_num)
        raise LookupError(f"no GID at index {index}; {_listing(self, table, port_num)}")

    def find_gid(
        self,
        address: str | IPv4Address | IPv6Address | None = None,
        *,
        gid_type: GIDType | int | None = None,
        netdev: str | None = None,
        port_num: int = 1,
    ) -> GIDEntry:
        """Return the entry of a port's GID table that meets all conditions given.

        address: the GID, as an IPv6 address, or as the IPv4 address that is mapped to it: text, or
            of the module ipaddress.
        gid_type: the type of the entry, a GIDType.
        netdev: the name of the network device that has the address.
        port_num: the port, counting from 1.

        If several match, RoCE v2 entries win over others, then the lowest index. Raises
        LookupError, which lists the port's GIDs, where none matches.
        """
        gid = None if address is None else _as_gid(address)
        if gid_type is not None:
            enums.number_of(gid_type, "gid_type", "a GIDType such as GIDType.ROCE_V2")
        table = self.query_gid_table(port_num)
        matches = [
            entry
            for entry in table
            if gid in (None, entry.gid)
            and gid_type in (None, entry.gid_type)
            and netdev in (None, entry.netdev)
        ]
        if not matches:
            conditions = {"address": address, "gid_type": gid_type, "netdev": netdev}
            asked = ", ".join(f"{k}={v}" for k, v in conditions.items() if v is not None)
            raise LookupError(f"no GID {asked or 'at all'}; {_listing(self, table, port_num)}")
        best = enums.GIDType.ROCE_V2
        return min(matches, key=lambda entry: (entry.gid_type != best, entry.index))


def is_iwarp(device: Context | Device) -> bool:
    """Return whether the device's QPs are connected by rdma_cm alone."""
    return device.transport_type == enums.TransportType.IWARP


def needs_rdma_cm(device: Context | Device) -> str | None:
    """Return why the device's QPs cannot be connected by verbs alone; None where they can."""
    if not is_iwarp(device):
        return None
    return f"{device.name} is an iWARP device, whose QPs are connected by rdma_cm alone"


def refuse_iwarp(context: Context) -> None:
    """Raise VerbsError (EOPNOTSUPP) where QPs cannot be connected by verbs alone.

    An iWARP connection is a TCP connection, so there is no path to give to a QP.
    """
    if why := needs_rdma_cm(context):
        raise _core.VerbsError(errno.EOPNOTSUPP, why)


def _as_gid(address: str | IPv4Address | IPv6Address) -> IPv6Address:
    from ipaddress import IPv4Address, IPv6Address, ip_address

    parsed = ip_address(address) if isinstance(address, str) else address
    if not isinstance(parsed, IPv4Address | IPv6Address):
        raise TypeError(f"address must be an IP address or its text, not {type(parsed).__name__}")
    if isinstance(parsed, IPv4Address):
        return IPv6Address(b"\0" * 10 + b"\xff\xff" + parsed.packed)
    return IPv6Address(parsed.packed)  # drops the scope, which a GID does not have


def gid_text(gid: IPv6Address) -> str:
    """Return a GID as rdma-core's programs print it, in every Python version: ::ffff:192.0.2.1."""
    mapped = gid.ipv4_mapped
    return str(gid) if mapped is None else f"::ffff:{mapped}"


def _listing(context: Context, table: list[GIDEntry], port_num: int) -> str:
    """List a port's GIDs, for the message of an error."""
    where = f"{context.name} port {port_num}"
    if not table:
        return f"{where} has none"
    entries = ", ".join(
        f"[{e.index}] {gid_text(e.gid)} {_type_name(e)} {e.netdev or ''}" for e in table
    )
    return f"{where} has {entries}".rstrip()


def _type_name(entry: GIDEntry) -> str:
    kind = entry.gid_type
    return kind.name if isinstance(kind, enums.GIDType) else str(kind)

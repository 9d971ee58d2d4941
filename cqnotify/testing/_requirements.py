# SPDX-License-Identifier: MIT
"""The requirements of the pytest marker `rdma`, and which of them a device does not meet."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from ..attrs import DeviceAttr
from ..context import Context
from ..enums import MTU, AtomicCap, LinkLayer

__all__ = ["Requirements"]

_HAS: Final[dict[str, tuple[Callable[[DeviceAttr], bool], str]]] = {
    "atomics": (lambda attr: attr.atomic_cap != AtomicCap.NONE, "atomics (atomic_cap is NONE)"),
    "srq": (lambda attr: attr.max_srq > 0, "shared receive queues (max_srq is 0)"),
    "mw": (lambda attr: attr.max_mw > 0, "memory windows (max_mw is 0)"),
    "multicast": (lambda attr: attr.max_mcast_grp > 0, "multicast (max_mcast_grp is 0)"),
}
_LINK_LAYERS: Final = {"InfiniBand": LinkLayer.INFINIBAND, "Ethernet": LinkLayer.ETHERNET}


@dataclass(frozen=True)
class Requirements:
    """The validated arguments of one marker."""

    devices: int = 1
    atomics: bool = False
    srq: bool = False
    mw: bool = False
    multicast: bool = False
    link_layer: str | None = None
    min_mtu: int = 0
    min_kernel: str = "0"

    @classmethod
    def of(cls, *args: object, **kwargs: Any) -> Requirements:
        """Return them; raise ValueError for an unknown argument or a value that it cannot have."""
        known = [field.name for field in fields(cls)]
        unknown = [repr(arg) for arg in args] + [name for name in kwargs if name not in known]
        if unknown:
            raise ValueError(f"rdma() knows {', '.join(known)}; not {', '.join(unknown)}")
        for name, value in kwargs.items():
            wanted = _refused(name, value)
            if wanted is not None:
                raise ValueError(f"rdma({name}={value!r}): {name} must be {wanted}")
        return cls(**kwargs)

    def missing_here(self) -> str | None:
        """Return what the machine lacks, apart from devices, or None."""
        release = os.uname().release
        if _version(release) < _version(self.min_kernel):
            return f"the test needs kernel {self.min_kernel}, this is {release}"
        return None

    def missing_in(self, ctx: Context, port_num: int) -> str | None:
        """Return what a device lacks, or None."""
        lacks = [*self._missing_in_device(ctx), *self._missing_in_port(ctx, port_num)]
        return f"device {ctx.name} has {' and '.join(lacks)}" if lacks else None

    def _missing_in_device(self, ctx: Context) -> Iterator[str]:
        attr = ctx.query_device()
        for name, (has, what) in _HAS.items():
            if getattr(self, name) and not has(attr):
                yield f"no {what}"

    def _missing_in_port(self, ctx: Context, port_num: int) -> Iterator[str]:
        port = ctx.query_port(port_num)
        if self.link_layer and port.link_layer != _LINK_LAYERS[self.link_layer]:
            names: dict[int, str] = {layer: name for name, layer in _LINK_LAYERS.items()}
            found = names.get(port.link_layer, port.link_layer)
            yield f"link layer {found}, not {self.link_layer}, on port {port_num}"
        mtu = port.active_mtu.bytes if isinstance(port.active_mtu, MTU) else 0
        if mtu < self.min_mtu:
            yield f"an active MTU of {mtu} bytes, not {self.min_mtu}, on port {port_num}"


def _refused(name: str, value: object) -> str | None:
    """Return None for a valid value, else what the value must be."""
    if name == "devices":
        good, wanted = type(value) is int and value >= 1, "a number of at least 1"
    elif name == "link_layer":
        good, wanted = value in list(_LINK_LAYERS), " or ".join(_LINK_LAYERS)
    elif name == "min_mtu":
        sizes = [mtu.bytes for mtu in MTU]
        good, wanted = value in sizes, f"one of {', '.join(map(str, sizes))}: bytes"
    elif name == "min_kernel":
        good = isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)*", value) is not None
        wanted = "a version such as '6.12'"
    else:
        good, wanted = value is True, "True, or left out"
    return None if good else wanted


def _version(release: str) -> tuple[int, ...]:
    """Return the numbers that a kernel release begins with."""
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, found[0].split("."))) if found else ()

# SPDX-License-Identifier: MIT
"""Descriptors: values that lead to exposed memory."""

from __future__ import annotations

import enum
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Self

PROCESS_SIZE: Final = 16  # bytes of the id of a process
MAX_HOSTS: Final = 64
MAX_DIMENSIONS: Final = 64  # of numpy
_PROCESS: Final = re.compile(f"[0-9a-f]{{{2 * PROCESS_SIZE}}}")


class Access(enum.Flag, boundary=enum.STRICT):  # the default, except in Python 3.11.2
    """The rights of peers: to read exposed memory, or to write to it."""

    READ = 1
    WRITE = 2


class Described:
    """What a Descriptor and an Exposure have in common: they have the same attributes."""

    __slots__ = ()

    def to_dict(self: Any) -> dict[str, Any]:
        """Return it as a dict that JSON can have."""
        return {
            "hosts": list(self.hosts),
            "port": self.port,
            "process": self.process,
            "token": self.token,
            "length": self.length,
            "access": self.access.value,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "order": self.order,
            "expires": self.expires,
        }


@dataclass(frozen=True, slots=True)
class Descriptor(Described):
    """Says where memory is that a process has exposed, and what it is. It may be pickled.

    hosts: the IP addresses of the process that exposes it, the best first.
    port: where it listens.
    process: its id, 32 hexadecimal digits. Only a peer that has it can connect.
    token: by which the process finds the memory, 64 bits. Both are secrets: a
        peer that has the descriptor has access.
    length: in bytes.
    access: what peers may do, an Access.
    dtype, shape, order: of a numpy array, as numpy.empty() takes them; None for other memory.
    expires: the time at which the access ends, in seconds since 1970; None: never.
    """

    hosts: tuple[str, ...]
    port: int
    process: str = field(repr=False)
    token: int = field(repr=False)
    length: int
    access: Access
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    order: str = "C"
    expires: float | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the descriptor of what `to_dict` returned.

        data: the dict; nothing in it is trusted.

        Raises ValueError for what is no descriptor.
        """
        try:
            shape = data.get("shape")
            return cls(
                hosts=_tuple(data["hosts"]),
                port=data["port"],
                process=data["process"],
                token=data["token"],
                length=data["length"],
                access=Access(data["access"]),
                dtype=data.get("dtype"),
                shape=None if shape is None else _tuple(shape),
                order=data.get("order", "C"),
                expires=data.get("expires"),
            )
        except (KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"this is no descriptor: {e!r}") from None

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MAX_HOSTS or not all(map(_is_address, self.hosts)):
            raise ValueError(f"hosts must be IP addresses, 1 to {MAX_HOSTS}")
        _check_int("port", self.port, 1, 65535)
        _check_int("token", self.token, 0, (1 << 64) - 1)
        _check_int("length", self.length, 0, (1 << 63) - 1)
        if not isinstance(self.access, Access) or not self.access:
            raise ValueError(f"access is {self.access!r}: it must be READ, WRITE or both")
        if not isinstance(self.process, str) or not _PROCESS.fullmatch(self.process):
            raise ValueError(f"process must be {2 * PROCESS_SIZE} hexadecimal digits")
        if self.shape is not None:
            if len(self.shape) > MAX_DIMENSIONS:
                raise ValueError(
                    f"shape has {len(self.shape)} dimensions, more than numpy can have"
                )
            for n in self.shape:
                _check_int("a dimension of shape", n, 0, (1 << 63) - 1)
        if not (self.dtype is None or isinstance(self.dtype, str)) or self.order not in ("C", "F"):
            raise ValueError(f"dtype {self.dtype!r} with order {self.order!r} is not numpy's")
        if not (self.expires is None or isinstance(self.expires, int | float)):
            raise ValueError(f"expires is {self.expires!r}: it must be seconds since 1970, or None")


def _tuple(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} must be a list")
    return tuple(value)


def _is_address(host: object) -> bool:
    if not isinstance(host, str):
        return False
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False


def _check_int(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}: it must be {least} to {most}")

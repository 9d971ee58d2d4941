# SPDX-License-Identifier: MIT
"""Calls functions of a provider that cqnotify does not wrap: mlx5's, by ctypes.

python examples/mlx5dv.py [DEVICE]

Any object's `pointer` is the address of its struct in libibverbs. cqnotify does not check how it is
used: declare the types of each function, and keep the object open meanwhile.
"""

import ctypes
import sys

from cqnotify import Context


class Attributes(ctypes.Structure):
    """The begin of `struct mlx5dv_context`, of <infiniband/mlx5dv.h>, and room for the rest."""

    _fields_ = (
        ("version", ctypes.c_uint8),
        ("flags", ctypes.c_uint64),
        ("comp_mask", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 1024),  # which the library may fill in
    )


def load() -> ctypes.CDLL:
    """Without argtypes, ctypes would cut pointers to 32 bits."""
    mlx5 = ctypes.CDLL("libmlx5.so.1", use_errno=True)
    mlx5.mlx5dv_is_supported.argtypes = [ctypes.c_void_p]
    mlx5.mlx5dv_is_supported.restype = ctypes.c_bool
    mlx5.mlx5dv_query_device.argtypes = [ctypes.c_void_p, ctypes.POINTER(Attributes)]
    mlx5.mlx5dv_query_device.restype = ctypes.c_int
    return mlx5


def main() -> None:
    mlx5 = load()
    with Context(sys.argv[1] if len(sys.argv) > 1 else None) as ctx:
        # struct ibv_context begins with a pointer to its struct ibv_device.
        device = ctypes.c_void_p.from_address(ctx.pointer)
        if not mlx5.mlx5dv_is_supported(device):
            print(f"{ctx.name} is not a device of mlx5")
            return
        attributes = Attributes()
        error = mlx5.mlx5dv_query_device(ctx.pointer, attributes)
        if error:
            raise OSError(error, "mlx5dv_query_device")
        print(f"{ctx.name}: version {attributes.version}, flags {attributes.flags:#x}")


main()

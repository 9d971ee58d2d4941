# SPDX-License-Identifier: MIT
"""numpy arrays and CPU tensors of torch: what they are, their memory, and new ones like them.

Neither package is imported before it is needed, nor need the other one be installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

Kind = tuple[tuple[int, ...], Any, str]
"""Shape, dtype and order ("C" or "F") of an array."""


class Numpy:
    """Of numpy.ndarray."""

    name = "RDMA_NUMPY"

    @staticmethod
    def data_type() -> type:
        return import_module("numpy").ndarray  # type: ignore[no-any-return]

    @staticmethod
    def kind(array: Any) -> Kind:
        """Return what an array is; raise ValueError if its memory has gaps."""
        if not array.flags.forc:
            raise ValueError(
                f"an array of shape {array.shape} and strides {array.strides} is not contiguous: "
                "return numpy.ascontiguousarray(array)"
            )
        return array.shape, array.dtype, "C" if array.flags.c_contiguous else "F"

    @staticmethod
    def empty(kind: Kind) -> Any:
        shape, dtype, order = kind
        return import_module("numpy").empty(shape, dtype, order)

    @staticmethod
    def buffer(array: Any) -> Any:
        """Return its memory."""
        return array


class Torch:
    """Of torch.Tensor, on the CPU."""

    name = "RDMA_TORCH"

    @staticmethod
    def data_type() -> type:
        return import_module("torch").Tensor  # type: ignore[no-any-return]

    @staticmethod
    def kind(tensor: Any) -> Kind:
        """Return what a tensor is; raise ValueError if its memory has gaps, or is not the CPU's."""
        if tensor.device.type != "cpu":
            raise ValueError(f"a tensor is on {tensor.device}: {Torch.name} is for CPU tensors")
        if not tensor.is_contiguous():
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not "
                "contiguous: return tensor.contiguous()"
            )
        return tensor.shape, tensor.dtype, "C"

    @staticmethod
    def empty(kind: Kind) -> Any:
        shape, dtype, _ = kind
        return import_module("torch").empty(shape, dtype=dtype)

    @staticmethod
    def buffer(tensor: Any) -> Any:
        """Return its memory."""
        return tensor.detach().reshape(-1).view(import_module("torch").uint8).numpy()

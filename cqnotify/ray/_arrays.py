# SPDX-License-Identifier: MIT
"""numpy arrays and CPU tensors of torch: what they are, their memory, and new ones like them.

Neither package is imported before it is needed.
"""

from __future__ import annotations

from typing import Any

Kind = tuple[tuple[int, ...], Any, str]
"""Shape, dtype and order ("C" or "F") of an array."""


class Numpy:
    """Of numpy.ndarray."""

    name = "RDMA_NUMPY"

    @staticmethod
    def data_type() -> type:
        import numpy

        return numpy.ndarray

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
        import numpy

        return numpy.empty(kind[0], kind[1], kind[2])

    @staticmethod
    def buffer(array: Any) -> Any:
        """Return its memory."""
        return array


class Torch:
    """Of torch.Tensor, on the CPU."""

    name = "RDMA_TORCH"

    @staticmethod
    def data_type() -> type:
        import torch

        return torch.Tensor

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
        import torch

        return torch.empty(kind[0], dtype=kind[1])

    @staticmethod
    def buffer(tensor: Any) -> Any:
        """Return its memory."""
        import torch

        return tensor.detach().reshape(-1).view(torch.uint8).numpy()

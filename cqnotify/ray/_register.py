# SPDX-License-Identifier: MIT
"""Making the transports known to Ray, which is imported when that is asked for."""

from __future__ import annotations


def register_numpy() -> None:
    """Register the transport RDMA_NUMPY, of numpy arrays, with Ray.

    Call this before the actors are created, in the process that creates them. To call it twice is
    no error.
    """
    from ._transport import NumpyTransport, register

    register(NumpyTransport)


def register_torch() -> None:
    """Register the transport RDMA_TORCH, of torch's CPU tensors, as `register_numpy` does."""
    from ._transport import TorchTransport, register

    register(TorchTransport)

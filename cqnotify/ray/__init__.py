# SPDX-License-Identifier: MIT
"""RDMA for Ray: tensor transports of Ray Direct Transport, over cqnotify.memory.

    cqnotify.ray.register_numpy()  # before the actors are created, in the process that creates them

    class Source:
        @ray.method(tensor_transport="RDMA_NUMPY")
        def rows(self): ...

The actor that returns an array exposes its memory, and the actor that gets it reads from there;
the object store does not see it. docs/ray.md has a whole program, and the limits.

The files, from above:
    _register.py   making the transports known to Ray
    _transport.py  what Ray calls: exposing, fetching, aborting, freeing
    _arrays.py     numpy arrays and torch tensors as bytes
    _ray.py        all that is used of Ray
"""

from ._register import register_numpy, register_torch

__all__ = ["register_numpy", "register_torch"]

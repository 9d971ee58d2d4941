# SPDX-License-Identifier: MIT
"""`rdma://` for Dask: clusters whose scheduler, workers and clients talk over cqnotify.messages.

distributed finds it by itself, where both are installed (pip install cqnotify[dask]):

    Client("rdma://10.99.0.1:8786")

docs/dask.md tells how to set up a cluster.
"""

from ._backend import Backend
from ._comm import Comm
from ._endpoints import Connector, Listener

__all__ = ["Backend", "Comm", "Connector", "Listener"]

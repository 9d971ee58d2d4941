# SPDX-License-Identifier: MIT
"""Awaiting completions, with asyncio (uvloop, too), trio or anyio.

An `AsyncCQ` awaits the completions of a CQ that has a completion channel:

    async with AsyncCQ(cq) as acq:
        wc = await acq.send(qp, mr[0:64])  # post, and await its own completion
        wcs = await acq.wait()  # whatever else completes on this CQ

It starts no thread, and the event loop sleeps until a completion comes.
"""

from ._batches import Batches
from ._cq import AsyncCQ
from ._scope import Scope
from ._stats import AsyncCQStats

__all__ = ["AsyncCQ", "AsyncCQStats", "Batches", "Scope"]

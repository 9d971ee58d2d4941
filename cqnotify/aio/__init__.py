# SPDX-License-Identifier: MIT
"""Awaiting completions, with asyncio (uvloop, too), trio or anyio.

An `AsyncCQ` awaits the completions of a CQ that has a completion channel:

    async with AsyncCQ(cq) as acq:
        wc = await acq.send(qp, mr[0:64])  # post, and await its own completion
        wcs = await acq.wait()  # whatever else completes on this CQ

It starts no thread, and the event loop sleeps until a completion comes.
"""

# The files, from below:
#   _loop_adapters.py  what is needed of an event loop: watching a descriptor (add_reader), waking
#   _trio.py           the same for trio
#   _reader.py         the one reader of a channel: which loop it is in
#   _failures.py       the exceptions that tasks get for failures of the device
#   _stats.py          what an AsyncCQ counts
#   _scope.py          the begin and the end of scopes
#   _batches.py        iterating over completions
#   _cq.py             AsyncCQ
#   _selector.py       the selector of new_event_loop()
#   _event_loop.py     new_event_loop()

from ._batches import Batches
from ._cq import AsyncCQ
from ._event_loop import new_event_loop
from ._scope import Scope
from ._stats import AsyncCQStats

__all__ = ["AsyncCQ", "AsyncCQStats", "Batches", "Scope", "new_event_loop"]

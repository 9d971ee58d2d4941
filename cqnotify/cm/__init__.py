# SPDX-License-Identifier: MIT
"""Connections by address, with rdma_cm, for asyncio (uvloop, too) and trio.

The program creates the QP, its CQs and its context; rdma_cm finds the device that leads to an
address, and connects the QP:

    conn = await cm.connect(qp, "10.99.0.1", 7471, private_data=b"hello")
    ...
    async with cm.listen("10.99.0.1", 7471) as listener:
        async for request in listener:
            conn = await request.accept(make_qp(request.device))

When the peer disconnects, or its process ends, the QP is moved to ERR: posted work requests
complete with WR_FLUSH_ERR, and `await conn.wait_closed()` returns. A connection to which nothing
refers is closed. `cqnotify.cm.blocking` has the same for threads.
"""

# The files, from below:
#   _local_addresses.py  the addresses of this host
#   _errors.py           events of rdma_cm, and the exceptions for them
#   _closing.py          threads in which an identifier is closed where that takes long
#   _keepalive.py        the thread that probes peers; QP._probe() posts each probe
#   _link.py             an identifier with its QP, and the steps of each call
#   _event_reader.py     reads the events, in an event loop or in a thread
#   _arguments.py        checks what the calls are given
#   _base.py             what objects for event loops and for threads have in common
#   _async.py            those for event loops, and the parameters of the calls
#   blocking.py          those for threads

from ._async import (
    Connection,
    Listener,
    MulticastGroup,
    Request,
    connect,
    join_multicast,
    listen,
    lookup,
    resolve,
)
from ._base import Resolved
from ._errors import (
    CMError,
    CMEventType,
    DisconnectedError,
    RejectedError,
    RejectReason,
    RequestExpiredError,
    UnreachableError,
)
from ._local_addresses import local_addresses

__all__ = [
    "CMError",
    "CMEventType",
    "Connection",
    "DisconnectedError",
    "Listener",
    "MulticastGroup",
    "RejectReason",
    "RejectedError",
    "Request",
    "RequestExpiredError",
    "Resolved",
    "UnreachableError",
    "connect",
    "join_multicast",
    "listen",
    "local_addresses",
    "lookup",
    "resolve",
]

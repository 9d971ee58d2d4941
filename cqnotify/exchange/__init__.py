# SPDX-License-Identifier: MIT
"""The address exchange of rdma-core's ping-pong programs, over TCP, in both roles.

One record of 52 bytes each way (`QPAddress.to_wire`), then the client says "done": so either
end may be ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong. Both ends post their receives and
arm their CQ before the exchange, for a server moves its QP to RTS before it answers, and a client
sends as soon as it has connected its own.

Several QPs are connected in one exchange where a list of addresses is given instead of one: as
many records go each way, and a list comes back. ibv_srq_pingpong always has 256.

With `payload`, each end also gets up to 65536 bytes from the other: an rkey and an address, a size,
a name, whatever the programs agree on; b"" says nothing and still gets the other's. The result is
then a tuple, the address and the peer's payload. Both ends need one, and rdma-core's programs have
none. The end that has one gets an error at once, the client ConnectionError, the server ValueError;
so does a server without one whose client has one. A client without one is not told.

Any number of exchanges may wait on one listener at once, in tasks and in threads; each gets a
client of its own. The functions without `_blocking` are coroutines for asyncio; the others are for
threads, and so for trio (`trio.to_thread.run_sync`). They wait without the GIL, and Ctrl-C ends
them.

The exchange has neither encryption nor authentication: it is for a network that you trust, and
servers listen on the loopback interface unless told otherwise. What comes in is limited in length
and time and parsed strictly.

Raised by all four functions: ValueError for anything that is not the protocol, ConnectionError for
a peer that closes too early, TimeoutError after `timeout` seconds, OSError for the network's own
errors, and (EBADF) where the listener is closed.
"""

from ._tcp import (
    DEFAULT_PORT as DEFAULT_PORT,
)
from ._tcp import (
    exchange_as_client,
    exchange_as_client_blocking,
    exchange_as_server,
    exchange_as_server_blocking,
    listen,
)

__all__ = [
    "exchange_as_client",
    "exchange_as_client_blocking",
    "exchange_as_server",
    "exchange_as_server_blocking",
    "listen",
]

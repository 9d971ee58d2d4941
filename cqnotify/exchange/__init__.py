# SPDX-License-Identifier: MIT
"""The address exchange of rdma-core's ping-pong programs, over TCP, as server or client.

Each end sends one record of 52 bytes (`QPAddress.to_wire`), then the client sends "done". So the
peer may be ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong. Both ends must post their receives
and arm their CQ before the exchange: the server moves its QP to RTS before it answers, and the
client sends as soon as it has connected its own QP.

To connect several QPs in one exchange, give a list of addresses: as many records go each way, and
the result is a list. ibv_srq_pingpong always exchanges 256.

With `payload`, each end also gets up to 65536 bytes from the other, for example an rkey and an
address; the result is then a tuple of the address and the peer's payload. Both ends must pass a
payload, which may be b""; rdma-core's programs do not. If only the client passes one, the client
gets ConnectionError and the server ValueError; if only the server does, the server gets ValueError
and the client no error.

Any number of exchanges can wait on one listener, in tasks and in threads; each gets a client of its
own. The functions here are coroutines for asyncio; `cqnotify.exchange.blocking` has the same for
threads, and so for trio (`trio.to_thread.run_sync`).

The exchange has neither encryption nor authentication: use it on networks that you trust. Servers
listen on the loopback interface by default. Input is limited in length and time, and parsed
strictly.

All of them raise ValueError for a peer that violates the protocol, ConnectionError for a
peer that closes the connection too early, TimeoutError after `timeout` seconds, and OSError for
errors of the network and (EBADF) for a closed listener.
"""

# The files, from below:
#   _protocol.py  the steps of each end, without sockets
#   _listener.py  the listening socket, and waiting there for a client
#   _async.py     the calls for asyncio
#   blocking.py   those for threads

from ._async import exchange_as_client, exchange_as_server
from ._listener import DEFAULT_PORT as DEFAULT_PORT
from ._listener import listen

__all__ = ["exchange_as_client", "exchange_as_server", "listen"]

# SPDX-License-Identifier: MIT
"""An echo server, and its client: messages go there and come back.

python examples/echo.py                                    # the server, for one client
python examples/echo.py --connect 127.0.0.1 hello again    # in another terminal
"""

import asyncio

from peer import Peer, arguments, connected

SIZE = 4096


async def serve(peer: Peer) -> None:
    qp, mr, acq = peer
    echoed = 0
    while (message := await acq.recv(qp, mr[:SIZE])).byte_len:
        await acq.send(qp, mr[: message.byte_len])
        echoed += 1
    print("echoed", echoed)


async def ask(peer: Peer, texts: list[str]) -> None:
    qp, mr, acq = peer
    for text in texts:
        # The receive first: it is posted as soon as the task runs, and awaited later.
        reply = asyncio.ensure_future(acq.recv(qp, mr[SIZE:]))
        length = mr.write(text.encode())
        await acq.send(qp, mr[:length])
        print(mr.read((await reply).byte_len, SIZE).decode())
    await acq.send(qp, None)  # an empty message ends the stream


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("text", nargs="*", default=["hello"])
    args = parser.parse_args()
    async with connected(args, 2 * SIZE) as peer:
        await (ask(peer, args.text) if args.connect else serve(peer))


asyncio.run(main())

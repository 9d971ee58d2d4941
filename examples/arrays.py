# SPDX-License-Identifier: MIT
"""A server that keeps arrays by name, and a client that stores one there and asks for parts of it.

python examples/arrays.py --bind 10.99.0.1                         # the server, for one client
python examples/arrays.py --connect 10.99.0.1 --port 7471 walk     # in another terminal

Arrays are never copied between the two: the receiver's device reads each from the sender's memory.
The first frame of a message is JSON: a request, or the type and shape of an array.
"""

import argparse
import asyncio
import json
import time
from typing import Any

import numpy

from cqnotify import messages


def described(array: Any, **more: Any) -> list[Any]:
    """An array as the frames of a message."""
    what = {"dtype": array.dtype.str, "shape": array.shape, **more}
    return [json.dumps(what).encode(), numpy.ascontiguousarray(array)]


def array_of(what: dict[str, Any], data: Any) -> Any:
    return numpy.frombuffer(data, what["dtype"]).reshape(what["shape"])


async def serve(conn: messages.Connection) -> None:
    arrays: dict[str, Any] = {}
    async for question, *data in conn:
        what = json.loads(bytes(question))
        if what["do"] == "put":
            arrays[what["name"]] = array_of(what, data[0])
            await conn.send(b"{}")
        elif what["name"] in arrays:
            first, last = what["rows"]
            await conn.send(*described(arrays[what["name"]][first:last]))
        else:
            await conn.send(json.dumps({"error": f"no array {what['name']}"}).encode())
    print("kept", *(f"{name} {array.nbytes}" for name, array in arrays.items()))


async def ask(conn: messages.Connection, *question: Any) -> Any:
    await conn.send(*question)
    answer, *data = await conn.recv()
    what = json.loads(bytes(answer))
    if "error" in what:
        raise LookupError(what["error"])
    return array_of(what, data[0]) if data else None


async def client(conn: messages.Connection, name: str, rows: int) -> None:
    array = numpy.random.default_rng(1).normal(size=(rows, 1000)).cumsum(axis=0)
    start = time.perf_counter()
    await ask(conn, *described(array, do="put", name=name))
    seconds = time.perf_counter() - start
    print(f"put {array.nbytes} bytes, {array.nbytes / seconds / 1e6:.1f} MB/s")
    for first, last in ((0, 1), (rows // 2, rows)):
        question = {"do": "get", "name": name, "rows": [first, last]}
        part = await ask(conn, json.dumps(question).encode())
        print("got rows", first, "to", last, "as put:", bool((part == array[first:last]).all()))
    try:
        await ask(conn, json.dumps({"do": "get", "name": "x", "rows": [0, 1]}).encode())
    except LookupError as e:
        print(e)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", default="0.0.0.0", help="the server: an address of its own")
    parser.add_argument("--connect", metavar="HOST", help="the client: where the server is")
    parser.add_argument("--port", type=int, default=7471)
    parser.add_argument("--rows", type=int, default=1000, help="of the array, of 8000 bytes each")
    parser.add_argument("name", nargs="?", default="walk")
    args = parser.parse_args()
    if args.connect:
        async with await messages.connect(args.connect, args.port) as conn:
            await client(conn, args.name, args.rows)
        return
    async with messages.listen(args.bind, args.port) as listener:
        print("listening on port", listener.local[1], flush=True)
        async with await listener.accept() as conn:
            await serve(conn)


asyncio.run(main())

# SPDX-License-Identifier: MIT
"""Draws connecting.svg, the life of a connection, for connections.md:
python docs/connecting.py >docs/connecting.svg"""

from __future__ import annotations

from drawing import LEFT, MIDDLE, RIGHT, arrow, bar, lines, path, picture, text

CLIENT, SERVER = LEFT + 8, RIGHT - 8  # the lines of the two ends
END = 478


def client(y: float, *words: str) -> list[str]:
    return lines(CLIENT + 12, y, *words)


def server(y: float, *words: str) -> list[str]:
    return lines(SERVER - 12, y, *words, kind="note end")


def to_server(y: float, event: str) -> list[str]:
    return [
        *arrow((CLIENT + 4, y), (SERVER - 4, y), kind="blue"),
        text(MIDDLE, y - 7, event, "middle"),
    ]


def to_client(y: float, event: str) -> list[str]:
    return [
        *arrow((SERVER - 4, y), (CLIENT + 4, y), kind="blue"),
        text(MIDDLE, y - 7, event, "middle"),
    ]


PARTS = [
    text(LEFT, 26, "The client", "head"),
    text(RIGHT, 26, "The server", "head end"),
    path("way", [(CLIENT, 36), (CLIENT, END)]),
    path("way", [(SERVER, 36), (SERVER, END)]),
    *server(54, "`cm.listen(host, port)`"),
    *client(82, "`await cm.connect(qp, host, port)`", "ADDR_RESOLVED, ROUTE_RESOLVED"),
    *to_server(134, "CONNECT_REQUEST"),
    *server(160, "`async for request in listener`", "`await request.accept(qp)`", "QP in RTS"),
    *to_client(230, "CONNECT_RESPONSE"),
    *client(254, "QP in RTS, then rdma_establish(3)"),
    *to_server(284, "ESTABLISHED"),
    bar(CLIENT - 6, 298, SERVER - CLIENT + 12, "good"),
    text(MIDDLE, 318, "connected: sends and receives", "middle"),
    *client(356, "`await conn.disconnect()`", "QP in ERR"),
    *to_server(408, "DISCONNECTED"),
    *server(432, "QP in ERR, by itself"),
    *to_client(464, "DISCONNECTED"),
    *lines(
        LEFT,
        504,
        "`await conn.wait_closed()` returns at both ends.",
        "Names in capitals are events, which cqnotify reads.",
    ),
]
SAYS = (
    "Time runs downwards. The server listens; the client calls connect(), which resolves address "
    "and route, and the server gets CONNECT_REQUEST. It accepts with a QP, which moves to RTS; "
    "the client gets CONNECT_RESPONSE, moves its QP to RTS, and the server gets ESTABLISHED. Later "
    "disconnect() moves the QP of one end to ERR; the other end gets DISCONNECTED, its QP moves to "
    "ERR, too, and its answer is a DISCONNECTED for the first end."
)

if __name__ == "__main__":
    print(picture("From connect to disconnect", SAYS, 540, PARTS), end="")

# SPDX-License-Identifier: MIT
"""A network card for a kernel that runs as a process: the device's side of vhost-user.

The kernel connects by virtio_uml and hands over its memory. All notifications travel on the
sockets, and each is answered: nothing happens behind the back of the clock's owner.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable

HEADER = struct.Struct("<III")  # request, flags, size
IS_REPLY, WANTS_REPLY, VERSION = 4, 8, 1
GET_FEATURES, SET_FEATURES, SET_MEM_TABLE = 1, 2, 5
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_ENABLE = 8, 9, 10, 18
GET_PROTOCOL_FEATURES, SET_SLAVE_REQ_FD, GET_CONFIG, VRING_KICK = 15, 21, 24, 35
VRING_CALL, CONFIG_CHANGED = 4, 2  # what we ask of the kernel

# Virtio 1, its own MAC address, a link that can go down; and the further features below.
FEATURES = 1 << 32 | 1 << 30 | 1 << 16 | 1 << 5
# Replies, requests of ours, a configuration, notifications in band.
PROTOCOL_FEATURES = 1 << 3 | 1 << 5 | 1 << 9 | 1 << 14

DESCRIPTOR = struct.Struct("<QIHH")  # address, length, flags, next
HAS_NEXT, NO_CALL = 1, 1
NET_HEADER = struct.pack("<10xH", 1)  # before each frame: nothing special, in one buffer
RECEIVE, TRANSMIT = 0, 1


class Queue:
    """A split virtqueue, from the device's side."""

    def __init__(self) -> None:
        self.size = self.descriptors = self.used = self.available = 0
        self.taken = self.given = 0  # counters of both rings; they wrap at 2^16


class Card:
    """`transmit` is called with each frame that the kernel sends."""

    def __init__(self, sock: socket.socket, mac: bytes, transmit: Callable[[bytes], None]) -> None:
        self.sock, self.mac, self.transmit = sock, mac, transmit
        self.up = True
        self.requests: socket.socket | None = None
        self.memory: mmap.mmap | None = None
        self.shift = 0  # from an address of the kernel to a place in its memory
        self.queues = (Queue(), Queue())
        self.fds: list[int] = []

    # -- messages

    def serve(self) -> None:
        """One message of the kernel's."""
        data, fds, _, _ = socket.recv_fds(self.sock, HEADER.size, 2)
        if len(data) < HEADER.size:
            raise EOFError
        request, flags, size = HEADER.unpack(data)
        payload = self.sock.recv(size, socket.MSG_WAITALL) if size else b""
        answer = self.obey(request, payload, fds)
        if answer is None and flags & WANTS_REPLY:
            answer = bytes(8)
        if answer is not None:
            reply = HEADER.pack(request, VERSION | IS_REPLY, len(answer))
            self.sock.sendall(reply + answer)

    def obey(self, request: int, payload: bytes, fds: list[int]) -> bytes | None:
        if request == GET_FEATURES:
            return struct.pack("<Q", FEATURES)
        if request == GET_PROTOCOL_FEATURES:
            return struct.pack("<Q", PROTOCOL_FEATURES)
        if request == GET_CONFIG:
            offset, size = struct.unpack_from("<II", payload)
            config = (self.mac + struct.pack("<H", self.up)).ljust(offset + size, b"\0")
            return payload[:12] + config[offset : offset + size]
        if request == SET_MEM_TABLE:
            self.map(payload, fds[0])
        elif request == SET_SLAVE_REQ_FD:
            self.requests = socket.socket(fileno=fds[0])
        elif request == VRING_KICK:
            if struct.unpack_from("<I", payload)[0] == TRANSMIT:
                self.send_all()
        elif request in (SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR):
            self.set_up(request, payload)
        return None

    def map(self, payload: bytes, fd: int) -> None:
        count, start, size, _, offset = struct.unpack_from("<I4xQQQQ", payload)
        assert count == 1
        self.memory = mmap.mmap(fd, offset + size)
        self.shift = offset - start
        os.close(fd)

    def set_up(self, request: int, payload: bytes) -> None:
        number, value = struct.unpack_from("<II", payload)
        queue = self.queues[number]
        if request == SET_VRING_NUM:
            queue.size = value
        elif request == SET_VRING_BASE:
            queue.taken = queue.given = value
        else:
            addresses = struct.unpack_from("<QQQ", payload, 8)
            queue.descriptors, queue.used, queue.available = (a + self.shift for a in addresses)

    def call(self, request: int, number: int = 0) -> None:
        """An interrupt; returns when the kernel knows of it."""
        assert self.requests
        message = struct.pack("<II", number, 0)
        self.requests.sendall(HEADER.pack(request, VERSION | WANTS_REPLY, len(message)) + message)
        size = HEADER.size + 8
        if len(self.requests.recv(size, socket.MSG_WAITALL)) < size:
            raise EOFError

    # -- frames

    def send_all(self) -> None:
        """Hands on every frame that the kernel has put into its ring."""
        while buffers := self.take(TRANSMIT):
            head, pieces = buffers
            assert self.memory
            frame = b"".join(self.memory[at : at + length] for at, length in pieces)
            self.give(TRANSMIT, head, 0)
            self.transmit(frame[len(NET_HEADER) :])

    def receive(self, frame: bytes) -> bool:
        """Puts a frame into the kernel's memory; False without room. call() must follow."""
        buffers = self.take(RECEIVE)
        if buffers is None:
            return False
        head, pieces = buffers
        left = NET_HEADER + frame
        size = len(left)
        assert self.memory
        for at, length in pieces:
            part, left = left[:length], left[length:]
            self.memory[at : at + len(part)] = part
        self.give(RECEIVE, head, size - len(left))
        return True

    def wants_call(self, number: int) -> bool:
        assert self.memory
        flags: int = struct.unpack_from("<H", self.memory, self.queues[number].available)[0]
        return not flags & NO_CALL

    def take(self, number: int) -> tuple[int, list[tuple[int, int]]] | None:
        """The next chain of buffers, by place and length, and its first descriptor's number."""
        queue = self.queues[number]
        if not self.memory or not queue.size:
            return None
        (there,) = struct.unpack_from("<H", self.memory, queue.available + 2)
        if there == queue.taken:
            return None
        at = queue.available + 4 + 2 * (queue.taken % queue.size)
        (head,) = struct.unpack_from("<H", self.memory, at)
        queue.taken = (queue.taken + 1) & 0xFFFF
        pieces, number = [], head
        while True:
            address, length, flags, following = DESCRIPTOR.unpack_from(
                self.memory, queue.descriptors + number * DESCRIPTOR.size
            )
            pieces.append((address + self.shift, length))
            if not flags & HAS_NEXT:
                return head, pieces
            number = following

    def give(self, number: int, head: int, length: int) -> None:
        queue = self.queues[number]
        assert self.memory
        at = queue.used + 4 + 8 * (queue.given % queue.size)
        struct.pack_into("<II", self.memory, at, head, length)
        queue.given = (queue.given + 1) & 0xFFFF
        struct.pack_into("<H", self.memory, queue.used + 2, queue.given)

    def close(self) -> None:
        if self.memory:
            self.memory.close()
        if self.requests:
            self.requests.close()
        self.sock.close()

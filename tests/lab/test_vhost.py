# SPDX-License-Identifier: MIT
"""The network card's side of vhost-user, against a kernel that is a few lines; and the calendar."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cqnotify.lab import vhost
from cqnotify.lab.timetravel import (
    NEVER,
    PLACE,
    PLACE_SIZE,
    PLACES_AT,
    SHARES_TIME,
    WISHES,
    Calendar,
)

MAC = bytes.fromhex("525400980001")
START = 0x60000000  # of the kernel's memory, by its own addresses
OFFSET = 4096  # in its file
SIZE = 1 << 20
ENTRIES = 4  # of a queue
RINGS = {vhost.RECEIVE: 0x1000, vhost.TRANSMIT: 0x3000}  # descriptors; then available, then used
BUFFERS = 0x10000


@dataclass
class Kernel:
    """Its driver: places buffers, and finds what the card has put into them."""

    sock: socket.socket
    memory: int = field(default_factory=lambda: os.memfd_create("memory"))
    given: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    def ask(self, request: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> bytes:
        header = vhost.HEADER.pack(request, 1 | vhost.WANTS_REPLY, len(payload))
        socket.send_fds(self.sock, [header + payload], list(fds))
        _, flags, size = vhost.HEADER.unpack(self.sock.recv(vhost.HEADER.size))
        assert flags == 1 | vhost.IS_REPLY
        return self.sock.recv(size, socket.MSG_WAITALL)

    def set_up(self) -> None:
        os.ftruncate(self.memory, OFFSET + SIZE)
        regions = struct.pack("<IIQQQQ", 1, 0, START, SIZE, START, OFFSET)
        self.ask(vhost.SET_MEM_TABLE, regions, (self.memory,))
        for queue, at in RINGS.items():
            self.ask(vhost.SET_VRING_NUM, struct.pack("<II", queue, ENTRIES))
            self.ask(vhost.SET_VRING_BASE, struct.pack("<II", queue, 0))
            addresses = (START + at, START + at + 0x800, START + at + 0x400, 0)
            self.ask(vhost.SET_VRING_ADDR, struct.pack("<II4Q", queue, 0, *addresses))

    def write(self, at: int, data: bytes) -> None:
        os.pwrite(self.memory, data, OFFSET + at)

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self.memory, size, OFFSET + at)

    def offer(self, queue: int, pieces: list[bytes]) -> None:
        """A chain of buffers, which begin with the given bytes."""
        at, head = RINGS[queue], self.given[queue] % ENTRIES
        numbers = [(head + n) % ENTRIES for n in range(len(pieces))]
        for n, piece in zip(numbers, pieces, strict=True):
            last = n == numbers[-1]
            self.write(BUFFERS + n * 0x1000, piece)
            entry = (START + BUFFERS + n * 0x1000, len(piece), 0 if last else 1, (n + 1) % ENTRIES)
            self.write(at + 16 * n, vhost.DESCRIPTOR.pack(*entry))
        self.write(at + 0x404 + 2 * (self.given[queue] % ENTRIES), struct.pack("<H", head))
        self.given[queue] = self.given[queue] + 1 & 0xFFFF
        self.write(at + 0x402, struct.pack("<H", self.given[queue]))

    def used(self, queue: int) -> int:
        number: int = struct.unpack("<H", self.read(RINGS[queue] + 0x802, 2))[0]
        return number


@pytest.fixture
def frames() -> list[bytes]:
    return []


@pytest.fixture
def card(frames: list[bytes]) -> Iterator[tuple[vhost.Card, Kernel]]:
    ours, theirs = socket.socketpair()
    card, kernel = vhost.Card(ours, MAC, frames.append), Kernel(theirs)

    def serve() -> None:
        try:
            while True:
                card.serve()
        except (EOFError, OSError):
            pass

    server = threading.Thread(target=serve)
    server.start()
    kernel.set_up()
    yield card, kernel
    theirs.close()
    server.join()
    card.close()
    os.close(kernel.memory)


def test_it_says_who_it_is(card: tuple[vhost.Card, Kernel]) -> None:
    _, kernel = card
    config = kernel.ask(vhost.GET_CONFIG, struct.pack("<III", 0, 8, 0) + bytes(8))
    assert config[12:] == MAC + b"\1\0"
    assert struct.unpack("<Q", kernel.ask(vhost.GET_FEATURES)) == (vhost.FEATURES,)


def test_frames_leave_whole_and_in_order_however_often_the_ring_goes_round(
    card: tuple[vhost.Card, Kernel], frames: list[bytes]
) -> None:
    _, kernel = card
    sent = [bytes([n]) * (60 + n) for n in range(40)]
    for frame in sent:
        kernel.offer(vhost.TRANSMIT, [bytes(12), frame[:14], frame[14:]])
        kernel.ask(vhost.VRING_KICK, struct.pack("<II", vhost.TRANSMIT, 0))
    assert frames == sent
    assert kernel.used(vhost.TRANSMIT) == len(sent)


def test_a_frame_arrives_in_the_buffers_that_there_are_and_none_without(
    card: tuple[vhost.Card, Kernel],
) -> None:
    device, kernel = card
    assert not device.receive(b"too early")
    for n in range(10):
        kernel.offer(vhost.RECEIVE, [bytes(100), bytes(100)])
        frame = bytes([n]) * 150
        assert device.receive(frame)
        assert not device.receive(frame)
        first, second = (BUFFERS + (n + m) % ENTRIES * 0x1000 for m in range(2))
        assert kernel.read(first, 100) + kernel.read(second, 62) == vhost.NET_HEADER + frame
        assert kernel.used(vhost.RECEIVE) == n + 1


def test_a_kernel_that_wants_no_call_gets_none(card: tuple[vhost.Card, Kernel]) -> None:
    device, kernel = card
    assert device.wants_call(vhost.TRANSMIT)
    kernel.write(RINGS[vhost.TRANSMIT] + 0x400, struct.pack("<H", vhost.NO_CALL))
    assert not device.wants_call(vhost.TRANSMIT)


def test_a_wish_is_an_instant_until_it_was_granted_or_its_kernel_has_gone() -> None:
    calendar = Calendar(2)
    at = PLACES_AT + 2 * PLACE_SIZE
    assert calendar.wish(2) == NEVER
    PLACE.pack_into(calendar.memory, at, SHARES_TIME, WISHES, 500, 0)
    assert calendar.wish(2) == 500
    assert calendar.wish(1) == NEVER
    calendar.forget(2)
    assert calendar.wish(2) == NEVER
    calendar.close()


def test_an_event_shortens_how_far_a_kernel_may_go_and_never_lengthens_it() -> None:
    calendar = Calendar(1)
    calendar.turn(1, 100, 1000)
    calendar.shorten(2000)
    assert (calendar.now, calendar.reached) == (100, 1000)
    calendar.shorten(700)
    assert calendar.reached == 700
    calendar.close()

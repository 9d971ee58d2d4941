# SPDX-License-Identifier: MIT
"""A peer of an RC queue pair that is made of frames: it sends what a test says, in that order.

It stands at the end of the cable, on the net device of the second RDMA device, with the addresses
of that. The packets are RoCEv2 over IPv6, see the InfiniBand Architecture Specification, volume 1,
chapter 9 and annex A17.
"""

from __future__ import annotations

import socket
import struct
import zlib
from enum import IntEnum

from support import DEADLINE

from cqnotify import QPAddress

UDP_PORT = 4791
ETHERNET, IPV6, UDP, ICRC = 14, 40, 8, 4  # bytes of the headers, and of the checksum
ACK, REMOTE_ACCESS_ERROR = b"\x1f\0\0\0", b"\x62\0\0\0"  # extended headers of responses


class Opcode(IntEnum):
    SEND_ONLY = 0x04
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_ONLY = 0x0A
    READ_REQUEST = 0x0C
    READ_FIRST = 0x0D
    READ_MIDDLE = 0x0E
    READ_LAST = 0x0F
    READ_ONLY = 0x10
    ACKNOWLEDGE = 0x11


class FramePeer:
    """here: its address, which names a queue pair that is closed; there: of the one under test."""

    def __init__(self, netdev: str, here: QPAddress, there: QPAddress) -> None:
        self._here, self._there = here, there
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
        self._socket.bind((netdev, 0x86DD))
        self._socket.settimeout(DEADLINE)
        self._ethernet = b""

    def close(self) -> None:
        self._socket.close()

    def expect(self, opcode: Opcode) -> int:
        """Wait for the next request; return its packet sequence number."""
        while True:
            frame, address = self._socket.recvfrom(65536)
            if address[2] == socket.PACKET_OUTGOING or not self._is_for_us(frame):
                continue
            assert icrc(frame[ETHERNET:-ICRC]) == frame[-ICRC:], "the checksum is known"
            self._ethernet = frame[6:12] + frame[:6] + frame[12:14]
            bth = frame[ETHERNET + IPV6 + UDP :]
            assert bth[0] == opcode, f"{bth[0]:#x} is not a {opcode.name}"
            return int.from_bytes(bth[9:12], "big")

    def _is_for_us(self, frame: bytes) -> bool:
        ip, udp = frame[ETHERNET:], frame[ETHERNET + IPV6 :]
        return (
            ip[6] == socket.IPPROTO_UDP
            and ip[8:40] == self._there.gid.packed + self._here.gid.packed
            and int.from_bytes(udp[2:4], "big") == UDP_PORT
            and int.from_bytes(udp[UDP + 5 : UDP + 8], "big") == self._here.qp_num
        )

    def send(self, opcode: Opcode, psn: int, data: bytes = b"", header: bytes = ACK) -> None:
        extended = b"" if opcode == Opcode.READ_MIDDLE else header
        pad = -len(data) % 4
        bth = struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, self._there.qp_num, psn & 0xFFFFFF)
        payload = bth + extended + data + bytes(pad)
        length = UDP + len(payload) + ICRC
        ip = struct.pack(">IHBB", 6 << 28, length, socket.IPPROTO_UDP, 64)
        ip += self._here.gid.packed + self._there.gid.packed
        udp = struct.pack(">HHHH", UDP_PORT, UDP_PORT, length, 0)
        tail = icrc(ip + udp + payload)
        udp = udp[:6] + udp_checksum(ip, udp + payload + tail)
        self._socket.send(self._ethernet + ip + udp + payload + tail)

    def acknowledge(self, psn: int) -> None:
        self.send(Opcode.ACKNOWLEDGE, psn)

    def refuse(self, psn: int) -> None:
        self.send(Opcode.ACKNOWLEDGE, psn, header=REMOTE_ACCESS_ERROR)

    def write_without_access(self) -> None:
        """The first request to the queue pair under test, which fails of it."""
        nowhere = struct.pack(">QII", 0, 0, 8)  # address, key, length
        self.send(Opcode.WRITE_ONLY, self._here.psn, bytes(8), nowhere)


def icrc(packet: bytes) -> bytes:
    """The invariant checksum of a packet from its IPv6 header on. Fields that change on the way
    count as ones."""
    masked = bytearray(packet)
    masked[:4] = b"\x6f\xff\xff\xff"  # the traffic class and the flow label
    masked[7] = 0xFF  # the hop limit
    masked[IPV6 + 6 : IPV6 + 8] = b"\xff\xff"  # the checksum of UDP
    masked[IPV6 + UDP + 4] = 0xFF
    return struct.pack("<I", zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8)))


def udp_checksum(ip: bytes, datagram: bytes) -> bytes:
    counted = ip[8:40] + struct.pack(">II", len(datagram), socket.IPPROTO_UDP) + datagram
    total = sum(struct.unpack(f">{(len(counted) + 1) // 2}H", counted + bytes(len(counted) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~total & 0xFFFF or 0xFFFF)

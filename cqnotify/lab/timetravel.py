# SPDX-License-Identifier: MIT
"""One clock for several kernels that run as processes: the calendar of time-travel=ext.

Each kernel connects to a socket of ours, and from then on its clock is ours. It computes in no time
at all; whatever it waits for, it asks for by an instant, and waits until we let it run at that
instant. Exactly one kernel runs at any moment. Messages are those of the kernel's
include/uapi/linux/um_timetravel.h, with the shared memory that Linux has had since 6.11: in it a
kernel leaves its wish, and finds how long it may run on without asking.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct

MESSAGE = struct.Struct("<IIQ")  # operation, sequence number, time in ns
ACK, START, REQUEST, WAIT, GET, UPDATE, RUN, FREE_UNTIL, GET_TOD, BROADCAST = range(10)

# The shared memory: version, length, free until, current time, who runs, number of places.
HEADER = struct.Struct("<IIQQHH")
FREE_UNTIL_AT, NOW_AT, RUNNING_AT = 8, 16, 24
VERSION = 2
PLACES_AT, PLACE_SIZE = 4096, 128  # of a place: abilities, flags, the instant asked for, name
PLACE = struct.Struct("<IIQQ")
SHARES_TIME = WISHES = 1
NEVER = 2**63 - 1


class Calendar:
    """The shared memory. Place 0 is our own; the others are the kernels', by number."""

    def __init__(self, kernels: int) -> None:
        size = PLACES_AT + PLACE_SIZE * (kernels + 1)
        self.fd = os.memfd_create("calendar")
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)
        HEADER.pack_into(self.memory, 0, VERSION, size, 0, 0, 0, kernels + 1)
        PLACE.pack_into(self.memory, PLACES_AT, SHARES_TIME, 0, 0, 0)
        self.log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    @property
    def now(self) -> int:
        return int(struct.unpack_from("<Q", self.memory, NOW_AT)[0])

    def turn(self, number: int, now: int, free_until: int) -> None:
        """Now the one with that number runs, and need not ask before `free_until`."""
        struct.pack_into("<QQH", self.memory, FREE_UNTIL_AT, free_until, now, number)

    @property
    def reached(self) -> int:
        """The instant that the one that ran may have reached by itself; none is further."""
        return int(struct.unpack_from("<Q", self.memory, FREE_UNTIL_AT)[0])

    def shorten(self, free_until: int) -> None:
        struct.pack_into("<Q", self.memory, FREE_UNTIL_AT, min(self.reached, free_until))

    def wish(self, number: int) -> int:
        """The instant for which a kernel has asked, or NEVER."""
        at = PLACES_AT + PLACE_SIZE * number
        _, flags, time, _ = PLACE.unpack_from(self.memory, at)
        return time if flags & WISHES else NEVER

    def forget(self, number: int) -> None:
        """The kernel that had this place is gone; another will take it."""
        PLACE.pack_into(self.memory, PLACES_AT + PLACE_SIZE * number, 0, 0, 0, 0)

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)
        os.close(self.log)


class Clock:
    """What one kernel says and hears of time."""

    def __init__(self, calendar: Calendar, number: int, sock: socket.socket, tod: int) -> None:
        self.calendar, self.number, self.sock, self.tod = calendar, number, sock, tod
        self.start = calendar.now  # the kernel's own clock begins here
        self.waits = False

    def run(self, at: int) -> None:
        self.waits = False
        self.sock.sendall(MESSAGE.pack(RUN, 0, at - self.start))

    def serve(self) -> None:
        """One message."""
        data = self.sock.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(data) < MESSAGE.size:
            raise EOFError
        operation, sequence, _ = MESSAGE.unpack(data)
        if operation == WAIT:
            self.waits = True
        elif operation == START:
            answer = MESSAGE.pack(ACK, sequence, self.number)
            socket.send_fds(self.sock, [answer], [self.calendar.fd, self.calendar.log])
        elif operation in (GET_TOD, GET):
            time = self.tod if operation == GET_TOD else 0
            self.sock.sendall(MESSAGE.pack(ACK, sequence, time + self.calendar.now))
        elif operation != ACK:
            self.sock.sendall(MESSAGE.pack(ACK, sequence, 0))

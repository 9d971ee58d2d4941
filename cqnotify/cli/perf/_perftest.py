# SPDX-License-Identifier: MIT
"""Measuring with ib_send_lat, ib_send_bw or ib_write_bw at the other end.

The protocol of perftest's programs has no name: both ends send the same things in the same order,
the client first, and nothing tells what the peer measures. To wait for each other, the ends
exchange their address records again. This end sends VERSION as its version, which newer programs
take into account.

    the version, the bytes in which buffers repeat, those of a cache line, the MTU
    the address of the queue pair; then both connect
    ... the record again, until both are ready: RECORDS times in all
    the messages that are measured
    ... again; of the bandwidth of writes, the figures, one after the other
    ... again, and "done"
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Any, Final

from ..._qp_connect import smaller_mtu
from ...enums import MTU
from ...qp import QPAddress
from .. import CommandError
from .._peer.meeting import RETRY, no_peer, note_if_slow
from .._peer.tcp import listening
from ._control import GONE, PeerGoneError
from ._end import ROOM, PerfEnd, open_end
from ._plan import Plan

VERSION: Final = b"6.06"
OLDEST: Final = 5.70
PAGE: Final = 4096  # buffers repeat in it
LINE: Final = 64
RECORD: Final = 108
RECORDS: Final = {"send": 4, "write": 3}  # with sends one more, when the receives are posted
_INT: Final = struct.Struct("!i")
_FIGURES: Final = struct.Struct("!QQddd")  # size, iterations, peak, average, millions a second
_ADDRESS: Final = re.compile(
    rb"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{8}):([0-9a-f]{16}):"
    rb"((?:[0-9a-f]{2}:){16})[0-9a-f]{8}:"
)
_RECORD_BEGIN: Final = re.compile(rb"[0-9a-f]{4}:")  # of an address, as our own ends send it
OTHER_PROGRAM: Final = "the peer is no program of perftest, or has no GID (its option -x)"


class Perftest:
    """The protocol with the peer, in place of a Control."""

    cq = None

    def __init__(self, plan: Plan, sock: socket.socket) -> None:
        self._plan = plan
        self._sock = sock
        self._record = b""
        self._has_told = False
        sock.settimeout(plan.timeout)

    # ---- the bytes --------------------------------------------------------------------------

    def _swap(self, data: bytes) -> bytes:
        """Send bytes, and return as many of the peer's. A client sends first."""
        try:
            if self._plan.client:
                self._sock.sendall(data)
            answer = self._read(len(data))
            if not self._plan.client:
                self._sock.sendall(data)
        except ConnectionError as e:
            raise PeerGoneError(GONE) from e
        except TimeoutError as e:
            raise CommandError(f"the peer sent nothing for {self._plan.timeout:g} s") from e
        return answer

    def _read(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            chunk = self._sock.recv(n - len(data))
            if not chunk:
                raise PeerGoneError(GONE)
            data += chunk
        return data

    def agree(self, path_mtu: int) -> int:
        """Exchange what comes before the addresses; return the smaller path MTU in bytes."""
        try:
            version = self._swap(VERSION.ljust(16, b"\0")).split(b"\0")[0]
        except PeerGoneError:
            raise CommandError(f"{GONE} at the first word; {self._other()}") from None
        if _RECORD_BEGIN.match(version):
            raise CommandError(f"the peer is no program of perftest; {self._other()}")
        with suppress(ValueError):
            if float(version) >= OLDEST:
                break_at = _INT.unpack(self._swap(_INT.pack(PAGE)))[0]
                _INT.unpack(self._swap(_INT.pack(LINE)))
                if break_at > ROOM:
                    raise CommandError(
                        f"the peer's buffers repeat in {break_at} bytes: the limit is {ROOM}"
                    )
                ours = next(mtu for mtu in MTU if mtu.bytes == path_mtu)
                theirs = MTU(int(self._swap(b"%d\0" % ours).split(b"\0")[0]))
                return smaller_mtu(ours, theirs).bytes
        raise CommandError(f"the peer's version is {version!r}: the oldest is {OLDEST:.2f}")

    def _other(self) -> str:
        return f"if it is `cqnotify {self._plan.name}`, give --perftest to neither"

    def swap_addresses(self, end: PerfEnd) -> QPAddress:
        """Exchange the addresses of the queue pairs, and note where the peer's memory is."""
        ours = end.address(end.qps[0])
        gid = "".join(f"{byte:02x}:" for byte in ours.gid.packed)
        self._record = (
            (
                f"{ours.lid:04x}:{1:04x}:{ours.qp_num:06x}:{ours.psn:06x}:{end.mr.rkey:08x}:"
                f"{end.into(1).addr:016x}:{gid}{0:08x}:"
            )
            .encode()
            .ljust(RECORD, b"\0")
        )
        found = _ADDRESS.match(self._swap(self._record))
        if found is None:
            raise CommandError(OTHER_PROGRAM)
        lid, _, qp_num, psn, rkey, addr = (int(found[i], 16) for i in range(1, 7))
        end.remote = {"device": None, "events": None, "yields": None, "addr": addr, "rkey": rkey}
        return QPAddress(
            lid, qp_num, psn, IPv6Address(bytes.fromhex(found[7].decode().replace(":", "")))
        )

    def _meet(self) -> None:
        """Wait until the peer has come to the same point."""
        self._swap(self._record)

    # ---- as a Control -----------------------------------------------------------------------

    def swap(self, message: dict[str, Any], _first: bool, _timeout: float) -> Any:
        """Wait until the peer is ready; the cost of a run is not sent."""
        if "ready" in message:
            for _ in range(RECORDS[self._plan.op] - 1):
                self._meet()
        return None

    def send(self, message: dict[str, Any]) -> None:
        """Exchange the figures of a bandwidth of writes; programs for sends have their own."""
        if "sent" in message and self._plan.op == "write":
            self._meet()
            messages, average, peak = message["sent"][:3]
            size = self._plan.sizes[0]
            self._swap_figures(messages, peak * size / 2**20, average * size / 2**20, average / 1e6)

    def _swap_figures(self, *figures: float) -> tuple[Any, ...]:
        data = _FIGURES.pack(self._plan.sizes[0], *figures)
        theirs = b"".join(self._swap(data[at : at + 8]) for at in range(0, len(data), 8))
        return _FIGURES.unpack(theirs)

    def wait(self, _timeout: float | None) -> Any:
        """Return None: a peer sends no figures of a latency."""
        return None

    def keep(self, message: Any) -> None:
        """Fail: a peer sends only one message."""
        raise AssertionError(message)

    def poll(self) -> Any:
        """Return the figures of a client that has sent all messages, else None.

        A client of sends does not send them: only the number of messages is known. Raises
        PeerGoneError.
        """
        if not select.select([self._sock], [], [], 0)[0]:
            return None
        if not self._sock.recv(1, socket.MSG_PEEK):
            raise PeerGoneError(GONE)
        if self._plan.name != "bandwidth" or self._plan.client or self._has_told:
            return None
        self._has_told = True
        if self._plan.op == "send":  # the record before "done", see flush()
            return {"sent": [self._plan.iters, 0.0, 0.0]}
        self._meet()
        size, messages, peak, average, millions = self._swap_figures(0, 0, 0, 0)
        if size != self._plan.sizes[0]:
            raise CommandError(f"the peer's messages have {size} bytes, and not what -s says here")
        rate = millions * 1e6
        return {"sent": [messages, rate, rate * (peak / average if average else 1)]}

    def ask(self) -> None:
        """Do nothing: `poll` notices when the peer has gone."""

    def arm_if_empty(self) -> bool:
        """Return True: what the peer sends wakes nothing, and is read after a slice of time."""
        return True

    def has_gone(self) -> bool:
        """Whether the peer has gone."""
        try:
            self.poll()
        except (PeerGoneError, OSError):
            return True
        return False

    def flush(self) -> None:
        """End the protocol."""
        with suppress(PeerGoneError, OSError):
            self._meet()
            self._sock.sendall(b"done\0")


# ---- the meeting ----------------------------------------------------------------------------


@contextmanager
def meet(plan: Plan) -> Iterator[PerfEnd]:
    """Agree with the peer on the MTU, exchange addresses, and connect."""
    try:
        sock = _serve(plan) if plan.host is None else _call(plan, plan.host)
    except TimeoutError:
        raise no_peer(plan) from None
    with sock:
        talk = Perftest(plan, sock)
        assert plan.path_mtu is not None
        found = replace(plan, path_mtu=talk.agree(plan.path_mtu))
        with open_end(found, talk) as end:
            remote = talk.swap_addresses(end)
            end.connect_to(0, remote)
            yield end


def _serve(plan: Plan) -> socket.socket:
    with listening(plan) as listener:
        listener.settimeout(plan.timeout)
        return listener.accept()[0]


def _call(plan: Plan, host: str) -> socket.socket:
    """Try until a server is there."""
    deadline = time.monotonic() + plan.timeout
    with note_if_slow(plan):
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                return socket.create_connection((host, plan.port), timeout=left)
            except ConnectionRefusedError:
                time.sleep(RETRY)
            except socket.gaierror as e:
                raise CommandError(f"{host}: {e.strerror}") from e

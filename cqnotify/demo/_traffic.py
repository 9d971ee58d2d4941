# SPDX-License-Identifier: MIT
"""The demo's traffic: our end, the peers in processes of their own, and the checks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final

from .. import exchange
from .._core import SGE, WorkCompletion
from .._qp_connect import PATIENT
from ..attrs import GIDEntry
from ..context import Context
from ..enums import MTU, AccessFlags, SendFlags, WCOpcode
from ..exchange import blocking
from ..qp import QPAddress
from ..testing import Endpoint

LOOPBACK: Final = "127.0.0.1"
START_LIMIT: Final = 60.0  # seconds for a peer to start, as the machine may be emulated
SEND_SLOTS: Final = 16
RECV_SLOTS: Final = 256
SOLICITED_EVERY: Final = 16


class DemoError(Exception):
    """The traffic failed; the message is for the terminal."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class CannotRunError(DemoError):
    """The demo cannot run here: there is no device, or no peer program."""


@dataclass(frozen=True)
class Plan:
    """What to run: so many messages, those of the stream `interval` seconds apart."""

    device: str
    peer_device: str
    messages: int
    interval: float
    link_local: bool

    @property
    def time_limit(self) -> float:
        """Seconds after which a run counts as stuck; many, as the machine may be emulated."""
        return 60.0 + self.messages * (0.1 + self.interval)


def find_gid(context: Context, link_local: bool) -> GIDEntry:
    """Return the GID to use, waiting while the address of a new link is still being checked.

    Between two devices of one machine only frames to link-local addresses go over the wire: the
    kernel delivers all others directly.
    """
    if not link_local:
        return context.find_gid()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for entry in context.query_gid_table(1):
            if entry.gid.is_link_local:
                return entry
        time.sleep(0.1)
    raise CannotRunError(f"{context.name} has no link-local GID")


class SlotEndpoint(Endpoint):
    """An endpoint with a slot of memory for each message that is being received or sent.

    The CQ of its sends is never armed, so every event is about receiving. A slot for sending is
    used again only after its completion.
    """

    def __init__(self, context: Context, link_local: bool, size: int) -> None:
        super().__init__(
            context,
            size=(RECV_SLOTS + SEND_SLOTS) * size,
            access=AccessFlags.LOCAL_WRITE,
            cqe=RECV_SLOTS,
            max_send_wr=SEND_SLOTS,
            max_recv_wr=RECV_SLOTS,
        )
        self.size = size
        self.gid = find_gid(context, link_local)
        self._sending: set[int] = set()
        self.qp.to_init()
        for slot in range(RECV_SLOTS):
            self.post_recv(slot)

    @property
    def address(self) -> QPAddress:
        return self.qp.address(gid_index=self.gid.index)

    def join(self, remote: QPAddress) -> None:
        """Connect to the peer, with the MTU of the ping-pong programs."""
        self.connect(remote, gid_index=self.gid.index, path_mtu=MTU.MTU_1024, ack_timeout=PATIENT)

    def post_recv(self, slot: int) -> None:
        self.qp.post_recv(self._slot(slot), wr_id=slot)

    def received(self, slot: int) -> bytes:
        return self.mr.read(self.size, slot * self.size)

    def send(self, data: bytes, number: int, solicited: bool = False) -> None:
        slot = RECV_SLOTS + number % SEND_SLOTS
        self._reap_until(lambda: slot not in self._sending)
        self.mr.write(data, slot * self.size)
        flags = SendFlags.SIGNALED | (SendFlags.SOLICITED if solicited else SendFlags(0))
        self.qp.post_send(self._slot(slot), wr_id=slot, send_flags=flags)
        self._sending.add(slot)

    def finish(self) -> None:
        """Wait until every message that was sent has been acknowledged."""
        self._reap_until(lambda: not self._sending)

    def _slot(self, slot: int) -> SGE:
        return self.mr[slot * self.size : (slot + 1) * self.size]

    def _reap_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT
        while True:
            for wc in self.send_cq.poll(SEND_SLOTS):
                wc.raise_for_status()
                self._sending.remove(wc.wr_id)
            if done():
                return
            if time.monotonic() > deadline:
                raise DemoError("a message that we sent was never acknowledged")
            time.sleep(0.001)  # rare: a slot is used again only after 15 others


@contextmanager
def open_end(device: str, link_local: bool, size: int) -> Iterator[SlotEndpoint]:
    """Open our end on a device, which is closed at the end of the block."""
    with Context(device) as context:
        yield SlotEndpoint(context, link_local, size)


def payload(number: int, size: int) -> bytes:
    """Return message `number`: the number, and bytes that differ from the previous message's."""
    start = number % 256
    return (number.to_bytes(8, "big") + _BYTES[start : start + size])[:size]


_BYTES: Final = bytes(range(256)) * 17


class Peer:
    """The peer's process. close() kills it; its stderr goes into the demo's errors."""

    def __init__(self, command: list[str], time_limit: float) -> None:
        self.name = os.path.basename(command[0])
        self._deadline = time.monotonic() + START_LIMIT + time_limit
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr
        )

    def check(self) -> None:
        """Raise DemoError if the process has failed, or if the run takes too long."""
        if self._process.poll():
            raise DemoError(f"{self.name} failed with exit code {self._process.returncode}")
        if time.monotonic() > self._deadline:
            raise DemoError("the messages stopped coming")

    def finish(self) -> None:
        """Wait for the end of the process; DemoError if it failed."""
        try:
            self._process.wait(START_LIMIT)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} does not end") from None
        self.check()

    def complaint(self) -> str:
        """Return what the process has written to stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").strip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stderr.close()


class Traffic(ABC):
    """Messages that are received one after the other, and checked byte by byte."""

    name: str
    size: int

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.received = 0
        self.progress: Callable[[int], object] = lambda received: None

    @property
    def done(self) -> bool:
        return self.received == self.plan.messages

    def start(self, end: SlotEndpoint) -> None:  # noqa: B027
        """Begin: both ends are connected."""

    def handle(self, end: SlotEndpoint, wcs: list[WorkCompletion]) -> None:
        """Check the messages of these completions, and post their receives again."""
        for wc in wcs:
            wc.raise_for_status()
            self._check(end, wc)
            end.post_recv(wc.wr_id)
            self.received += 1
            self.answer(end)
        self.progress(self.received)

    def answer(self, end: SlotEndpoint) -> None:  # noqa: B027
        """Answer the message that was just received, if the traffic goes both ways."""

    def _check(self, end: SlotEndpoint, wc: WorkCompletion) -> None:
        if wc.opcode != WCOpcode.RECV or wc.byte_len != self.size:
            raise DemoError(f"message {self.received}: unexpected completion {wc!r}")
        if end.received(wc.wr_id) != payload(self.received, self.size):
            raise DemoError(f"message {self.received} arrived with wrong bytes")

    @abstractmethod
    def launch(self, end: SlotEndpoint) -> Peer:
        """Start the peer's process."""

    @abstractmethod
    def meet(self, end: SlotEndpoint) -> None:
        """Exchange addresses with the peer, and connect to it."""

    @abstractmethod
    async def meet_async(self, end: SlotEndpoint) -> None:
        """The same with asyncio."""

    def close(self) -> None:  # noqa: B027  by default nothing
        """Release what the traffic holds."""


class PingPong(Traffic):
    """A ping-pong with rdma-core's own program; we begin.

    That program receives into and sends from one buffer, so each answer has our message's bytes.
    """

    name = "ibv_rc_pingpong"
    size = 4096

    def launch(self, end: SlotEndpoint) -> Peer:
        program = shutil.which("ibv_rc_pingpong")
        if program is None:
            raise CannotRunError("ibv_rc_pingpong is not installed (package ibverbs-utils)")
        with Context(self.plan.peer_device) as context:
            gid = find_gid(context, self.plan.link_local)
        self._port = _free_port()
        options = {
            "-d": self.plan.peer_device,
            "-g": gid.index,
            "-p": self._port,
            "-n": self.plan.messages,
            "-s": self.size,
        }
        arguments = [str(word) for option in options.items() for word in option]
        return Peer([program, "-e", *arguments], self.plan.time_limit)

    def meet(self, end: SlotEndpoint) -> None:
        end.join(
            blocking.exchange_as_client(LOOPBACK, self._port, end.address, timeout=START_LIMIT)
        )

    async def meet_async(self, end: SlotEndpoint) -> None:
        end.join(
            await exchange.exchange_as_client(
                LOOPBACK, self._port, end.address, timeout=START_LIMIT
            )
        )

    def start(self, end: SlotEndpoint) -> None:
        end.send(payload(0, self.size), 0)

    def answer(self, end: SlotEndpoint) -> None:
        if not self.done:
            end.send(payload(self.received, self.size), self.received)


class Stream(Traffic):
    """Messages one way, from our slow sender in another process."""

    name = "paced stream"
    size = 1024

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._listener = exchange.listen(port=0)

    def launch(self, end: SlotEndpoint) -> Peer:
        options = {
            "--device": self.plan.peer_device,
            "--port": self._listener.getsockname()[1],
            "--messages": self.plan.messages,
            "--interval": self.plan.interval,
        }
        arguments = [str(word) for option in options.items() for word in option]
        arguments += ["--link-local"] if self.plan.link_local else []
        module = f"{__package__}._sender"
        return Peer([sys.executable, "-m", module, *arguments], self.plan.time_limit)

    def meet(self, end: SlotEndpoint) -> None:
        blocking.exchange_as_server(self._listener, end.address, end.join, timeout=START_LIMIT)

    async def meet_async(self, end: SlotEndpoint) -> None:
        await exchange.exchange_as_server(
            self._listener, end.address, end.join, timeout=START_LIMIT
        )

    def close(self) -> None:
        self._listener.close()


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as sock:
        return int(sock.getsockname()[1])

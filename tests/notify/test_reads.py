# SPDX-License-Identifier: MIT
"""Soft-RoCE can report a read of several packets as successful without its data, except on Linux
6.1: then it counts as flushed, and no other read does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from frame_peer import FramePeer, Opcode
from support import DEADLINE, Endpoint, kernel, until, wait_completions

from cqnotify import (
    CQ,
    CompletionChannel,
    CompletionError,
    Context,
    QPState,
    QPType,
    SendWR,
    WCExFlags,
    WCStatus,
    WROpcode,
)
from cqnotify.aio import AsyncCQ

pytestmark = pytest.mark.not_on_iwarp("the peer speaks RoCE")
loses_data = pytest.mark.skipif(kernel() < (6, 2), reason="an old ACK breaks no read there")

MTU = 1024
DATA = bytes(i % 251 + 1 for i in range(3000))  # three packets
AT = 4096  # where an endpoint's memory for reads begins
SUCCESS, FLUSHED = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
REFUSED = WCStatus.REM_ACCESS_ERR
READ, LATER = 2, 3  # wr_ids


class Reader:
    """A queue pair that reads, and its peer."""

    def __init__(self, ctx: Context, ctx2: Context, netdev: str, **parts: Any) -> None:
        there = Endpoint(ctx2, QPType.RC)
        remote = there.qp.address()
        there.close()  # rxe drops what is sent to it
        self.end = Endpoint(ctx, QPType.RC, size=8192, **parts)
        self.cq, self.qp = self.end.scq, self.end.qp
        self._remote = remote
        self.peer = FramePeer(netdev, remote, self.qp.address())
        self.connect()

    def connect(self) -> None:
        self.end.connect(self._remote, path_mtu=MTU, ack_timeout=0, max_rd_atomic=4)
        self.old_psn = self.send()

    def close(self) -> None:
        self.peer.close()
        self.end.close()

    def send(self) -> int:
        """Send a message, which is acknowledged. Return the number of its packet."""
        self.qp.post_send(self.end.mr[0:8], wr_id=1)
        psn = self.peer.expect(Opcode.SEND_ONLY)
        self.peer.acknowledge(psn)
        (wc,) = wait_completions(self.cq)
        assert (wc.wr_id, wc.status) == (1, SUCCESS)
        return psn

    def post_read(self, nbytes: int = len(DATA)) -> int:
        """Return the number of the first packet of the response."""
        self.end.mr.write(bytes(nbytes), AT)
        into = self.end.mr[AT : AT + nbytes]
        self.qp.post_send(
            SendWR(into, opcode=WROpcode.RDMA_READ, wr_id=READ, remote_addr=4096, rkey=1)
        )
        return self.peer.expect(Opcode.READ_REQUEST)

    def post_write(self, nbytes: int = 8) -> int:
        """Return the number of its packet, or its last one of three."""
        source = self.end.mr[0:nbytes]
        self.qp.post_send(
            SendWR(source, opcode=WROpcode.RDMA_WRITE, wr_id=LATER, remote_addr=4096, rkey=1)
        )
        if nbytes <= MTU:
            return self.peer.expect(Opcode.WRITE_ONLY)
        self.peer.expect(Opcode.WRITE_FIRST)
        self.peer.expect(Opcode.WRITE_MIDDLE)
        return self.peer.expect(Opcode.WRITE_LAST)

    def respond(self, psn: int, *, with_old_ack: bool = False) -> None:
        """All of DATA, in three packets; an old acknowledgement comes behind the first."""
        self.peer.send(Opcode.READ_FIRST, psn, DATA[:MTU])
        if with_old_ack:
            self.peer.acknowledge(self.old_psn)
        self.peer.send(Opcode.READ_MIDDLE, psn + 1, DATA[MTU : 2 * MTU])
        self.peer.send(Opcode.READ_LAST, psn + 2, DATA[2 * MTU :])

    def lose(self, psn: int) -> None:
        """After it the queue pair has failed, and its completions are in the CQ."""
        self.respond(psn, with_old_ack=True)
        self.until_failed()

    def until_failed(self) -> None:
        until(lambda: self.qp.query().qp_state == QPState.ERR, "the device has failed")

    def until_event(self) -> None:
        """Until a completion is in the CQ, which is not polled. It must be armed."""
        assert self.end.channel.get_event(timeout=DEADLINE) is self.cq
        self.cq.ack()

    def data(self, nbytes: int = len(DATA)) -> bytes:
        return self.end.mr.read(nbytes, AT)

    def polled(self, n: int = 16) -> list[tuple[int, WCStatus]]:
        return [(wc.wr_id, WCStatus(wc.status)) for wc in self.cq.poll(n)]

    def polled_until(self, n: int, at_a_time: int) -> list[tuple[int, WCStatus]]:
        """The later ones of a failed queue pair are flushed a moment after it has failed."""
        found: list[tuple[int, WCStatus]] = []

        def all_there() -> bool:
            found.extend(self.polled(at_a_time))
            return len(found) >= n

        until(all_there, f"{n} completions")
        return found


MakeReader = Callable[..., Reader]


@pytest.fixture
def make_reader(ctx: Context, ctx2: Context, netdev: str) -> Iterator[MakeReader]:
    made: list[Reader] = []

    def make(**parts: Any) -> Reader:
        made.append(Reader(ctx, ctx2, netdev, **parts))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def reader(make_reader: MakeReader) -> Reader:
    return make_reader()


def test_a_read_is_complete(reader: Reader) -> None:
    reader.respond(reader.post_read())
    (wc,) = wait_completions(reader.cq)
    assert (wc.status, wc.byte_len, reader.data()) == (SUCCESS, len(DATA), DATA)
    reader.send()


@pytest.mark.skipif(kernel() >= (6, 2), reason="an old ACK breaks the read there")
def test_an_old_acknowledgement_changes_nothing(reader: Reader) -> None:
    reader.respond(reader.post_read(), with_old_ack=True)
    (wc,) = wait_completions(reader.cq)
    assert (wc.status, reader.data()) == (SUCCESS, DATA)


@loses_data
def test_a_read_whose_data_is_lost_counts_as_flushed(reader: Reader) -> None:
    reader.lose(reader.post_read())
    (wc,) = reader.cq.poll()
    assert reader.data() == DATA[:MTU] + bytes(len(DATA) - MTU)
    assert (wc.wr_id, wc.status, wc.qp_num) == (READ, FLUSHED, reader.qp.qp_num)


@loses_data
@pytest.mark.parametrize(
    "wc_flags", [WCExFlags(0), WCExFlags.BYTE_LEN], ids=["without length", "with length"]
)
def test_an_extended_cq(ctx: Context, make_reader: MakeReader, wc_flags: WCExFlags) -> None:
    with CompletionChannel(ctx) as channel, CQ(ctx, 64, channel=channel, wc_flags=wc_flags) as cq:
        one, other = (make_reader(send_cq=cq) for _ in range(2))
        one.respond(one.post_read())
        (wc,) = wait_completions(cq)
        assert (wc.status, one.data()) == (SUCCESS, DATA)
        other.lose(other.post_read())
        assert other.polled() == [(READ, FLUSHED)]
        one.close()
        other.close()


@loses_data
def test_a_thread_that_spins_reads_the_completion(reader: Reader) -> None:
    reader.lose(reader.post_read())
    (wc,) = reader.cq.poll(spin=60)
    assert wc.status == FLUSHED


@loses_data
def test_a_task_that_awaits_the_read_gets_the_error(reader: Reader) -> None:
    async def main() -> None:
        async with AsyncCQ(reader.cq) as acq:
            into = reader.end.mr[AT : AT + len(DATA)]
            reading = asyncio.ensure_future(acq.read(reader.qp, into, 4096, 1))
            await asyncio.sleep(0)
            reader.lose(reader.peer.expect(Opcode.READ_REQUEST))
            with pytest.raises(CompletionError) as e:
                await reading
            assert e.value.wc.status == FLUSHED

    asyncio.run(main())


@loses_data
@pytest.mark.parametrize("at_a_time", [1, 16])
def test_later_requests_are_flushed_too(reader: Reader, at_a_time: int) -> None:
    psn = reader.post_read()
    reader.post_write()
    reader.lose(psn)
    assert reader.polled_until(2, at_a_time) == [(READ, FLUSHED), (LATER, FLUSHED)]


@pytest.mark.parametrize("at_a_time", [1, 16])
def test_a_later_request_has_failed(reader: Reader, at_a_time: int) -> None:
    """That has ended the queue pair, so the read is complete, even if it is polled by itself."""
    psn = reader.post_read()
    write = reader.post_write()
    reader.respond(psn)
    reader.peer.refuse(write)
    reader.until_failed()
    assert reader.polled_until(2, at_a_time) == [(READ, SUCCESS), (LATER, REFUSED)]
    assert reader.data() == DATA


@pytest.mark.parametrize("at_a_time", [1, 16])
def test_a_later_request_was_carried_out(reader: Reader, at_a_time: int) -> None:
    """So the read is complete, although a third one has failed."""
    psn = reader.post_read()
    writes = [reader.post_write() for _ in range(2)]
    reader.respond(psn)
    reader.peer.acknowledge(writes[0])
    reader.peer.refuse(writes[1])
    reader.until_failed()
    assert reader.polled_until(3, at_a_time) == [
        (READ, SUCCESS),
        (LATER, SUCCESS),
        (LATER, REFUSED),
    ]


def test_what_was_read_ahead_needs_no_other_event(reader: Reader) -> None:
    """A poll that got less than it asked for has left nothing."""
    psn = reader.post_read()
    write = reader.post_write()
    reader.respond(psn)
    reader.peer.refuse(write)
    reader.until_failed()
    assert len(reader.cq.poll(64)) == 2


@loses_data
def test_completions_of_another_queue_tell_nothing(make_reader: MakeReader) -> None:
    one = make_reader()
    other = make_reader(send_cq=one.cq)
    one.lose(one.post_read())
    one.cq.req_notify()
    other.respond(other.post_read())
    one.until_event()
    assert one.polled() == [(READ, FLUSHED), (READ, SUCCESS)]
    assert other.data() == DATA
    other.close()


def test_a_read_of_one_packet_and_a_long_write_are_believed(reader: Reader) -> None:
    """Although the queue pair has failed since, and no later request tells anything."""
    psn = reader.post_read(MTU)
    reader.cq.req_notify()
    reader.peer.send(Opcode.READ_ONLY, psn, DATA[:MTU])
    reader.until_event()
    psn = reader.post_write(len(DATA))
    reader.cq.req_notify()
    reader.peer.acknowledge(psn)
    reader.until_event()
    reader.peer.write_without_access()
    reader.until_failed()
    assert reader.polled() == [(READ, SUCCESS), (LATER, SUCCESS)]
    assert reader.data(MTU) == DATA[:MTU]


@pytest.mark.parametrize("at_a_time", [1, 16])
def test_a_read_that_was_refused_is_not_flushed(reader: Reader, at_a_time: int) -> None:
    reader.respond(reader.post_read())
    assert reader.polled_until(1, at_a_time) == [(READ, SUCCESS)]
    reader.peer.refuse(reader.post_read())
    reader.until_failed()
    assert reader.polled_until(1, at_a_time) == [(READ, REFUSED)]


ENDS: list[Callable[[Reader], object]] = [
    lambda reader: reader.qp.modify(qp_state=QPState.ERR),
    lambda reader: reader.qp.modify(qp_state=QPState.RESET),
    lambda reader: reader.qp.close(),
]


@pytest.mark.parametrize("end", ENDS, ids=["ERR", "RESET", "closed"])
def test_the_program_ends_the_queue_pair(reader: Reader, end: Callable[[Reader], object]) -> None:
    """A read that had completed by then is complete."""
    reader.cq.req_notify()
    reader.respond(reader.post_read())
    reader.until_event()
    end(reader)
    assert (reader.polled(), reader.data()) == ([(READ, SUCCESS)], DATA)


@loses_data
@pytest.mark.parametrize("end", ENDS, ids=["ERR", "RESET", "closed"])
def test_the_program_ends_it_after_the_device(
    reader: Reader, end: Callable[[Reader], object]
) -> None:
    reader.lose(reader.post_read())
    end(reader)
    assert reader.polled() == [(READ, FLUSHED)]


@loses_data
def test_a_queue_pair_that_was_reset_reads_again(reader: Reader) -> None:
    reader.lose(reader.post_read())
    reader.qp.modify(qp_state=QPState.RESET)
    assert reader.polled() == [(READ, FLUSHED)]
    reader.connect()
    reader.respond(reader.post_read())
    (wc,) = wait_completions(reader.cq)
    assert (wc.status, reader.data()) == (SUCCESS, DATA)

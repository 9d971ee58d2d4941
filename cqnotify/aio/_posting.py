# SPDX-License-Identifier: MIT
"""Work requests that are posted and awaited in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._core import WorkCompletion
from ..enums import SendFlags, WROpcode
from ..qp import QP
from ._claims import MANAGED, RECV, SEND

if TYPE_CHECKING:
    from .._core import AH, _RecvSG, _SendSG


class Posting:
    """The methods of AsyncCQ that post."""

    __slots__ = ()

    async def _perform(
        self, qp: QP, queue: int, post: Callable[[int], None], wr_id: int | None
    ) -> WorkCompletion:
        raise NotImplementedError

    async def _request(
        self,
        qp: QP,
        sg: _SendSG,
        opcode: WROpcode,
        send_flags: SendFlags | int,
        wr_id: int | None,
        **more: Any,
    ) -> WorkCompletion:
        """What QP.post_send() posts. Who awaits a completion needs one that tells."""
        flags = send_flags | SendFlags.SIGNALED

        def post(wr_id: int) -> None:
            qp.post_send(sg, wr_id=wr_id, opcode=opcode, send_flags=flags, **more)

        return await self._perform(qp, SEND, post, wr_id)

    async def send(
        self,
        qp: QP,
        sg: _SendSG,
        *,
        imm_data: int | None = None,
        send_flags: SendFlags | int = SendFlags.SIGNALED,
        wr_id: int | None = None,
        ah: AH | None = None,
        remote_qpn: int | None = None,
        remote_qkey: int | None = None,
    ) -> WorkCompletion:
        """Post a SEND, or a SEND_WITH_IMM if `imm_data` is given, and await its completion.

        `qp` must send on this CQ. The arguments are those of QP.post_send(); SIGNALED is always
        set. Where the send queue is full it waits for room, first come, first served.

        Without `wr_id` one is chosen (`2**63` and above) that nobody else uses. If the awaiting
        task is cancelled, the device goes on: the memory is kept until the completion, which is
        dropped then, or, if you gave a `wr_id`, stays in the queue.

        Raises CompletionError (with status, qp_num, wr_id) if it failed, ValueError and VerbsError
        for what cannot be posted, AsyncEventError and ClosedError as wait(), ClosedError also when
        the QP is closed or reset. Wraps ibv_post_send(3) and ibv_poll_cq(3).
        """
        return await self._request(
            qp,
            sg,
            WROpcode.SEND if imm_data is None else WROpcode.SEND_WITH_IMM,
            send_flags,
            wr_id,
            imm_data=imm_data,
            ah=ah,
            remote_qpn=remote_qpn,
            remote_qkey=remote_qkey,
        )

    async def recv(self, qp: QP, sg: _RecvSG, *, wr_id: int | None = None) -> WorkCompletion:
        """Post a receive, and await the message.

        `qp` must receive on this CQ, and not from an SRQ. As send(), but a receive whose task was
        cancelled stays posted, and the completion of the message that comes for it goes to wait():
        no message is lost. Give a `wr_id` to know then in which memory it is; completion(wr_id)
        awaits it again.
        Wraps ibv_post_recv(3) and ibv_poll_cq(3).
        """

        def post(wr_id: int) -> None:
            qp.post_recv(sg, wr_id=wr_id)

        return await self._perform(qp, RECV, post, wr_id)

    async def write(
        self,
        qp: QP,
        sg: _SendSG,
        remote_addr: int,
        rkey: int,
        *,
        imm_data: int | None = None,
        send_flags: SendFlags | int = SendFlags.SIGNALED,
        wr_id: int | None = None,
    ) -> WorkCompletion:
        """Post an RDMA_WRITE (with `imm_data` RDMA_WRITE_WITH_IMM), and await its completion.

        See send().
        """
        opcode = WROpcode.RDMA_WRITE if imm_data is None else WROpcode.RDMA_WRITE_WITH_IMM
        return await self._request(
            qp, sg, opcode, send_flags, wr_id, imm_data=imm_data, remote_addr=remote_addr, rkey=rkey
        )

    async def read(
        self,
        qp: QP,
        sg: _RecvSG,
        remote_addr: int,
        rkey: int,
        *,
        send_flags: SendFlags | int = SendFlags.SIGNALED,
        wr_id: int | None = None,
    ) -> WorkCompletion:
        """Post an RDMA_READ into `sg`, and await its completion. See send()."""
        return await self._request(
            qp, sg, WROpcode.RDMA_READ, send_flags, wr_id, remote_addr=remote_addr, rkey=rkey
        )

    async def atomic_cmp_and_swp(
        self,
        qp: QP,
        sg: _RecvSG,
        remote_addr: int,
        rkey: int,
        compare_add: int,
        swap: int,
        *,
        send_flags: SendFlags | int = SendFlags.SIGNALED,
        wr_id: int | None = None,
    ) -> WorkCompletion:
        """Post an ATOMIC_CMP_AND_SWP, and await its completion.

        If the 8 bytes at `remote_addr` equal `compare_add` they become `swap`; what they were
        before is in `sg`, 8 bytes. See send().
        """
        return await self._request(
            qp,
            sg,
            WROpcode.ATOMIC_CMP_AND_SWP,
            send_flags,
            wr_id,
            remote_addr=remote_addr,
            rkey=rkey,
            compare_add=compare_add,
            swap=swap,
        )

    async def atomic_fetch_and_add(
        self,
        qp: QP,
        sg: _RecvSG,
        remote_addr: int,
        rkey: int,
        compare_add: int,
        *,
        send_flags: SendFlags | int = SendFlags.SIGNALED,
        wr_id: int | None = None,
    ) -> WorkCompletion:
        """Post an ATOMIC_FETCH_AND_ADD, and await its completion.

        `compare_add` is added to the 8 bytes at `remote_addr`; what they were before is in `sg`, 8
        bytes. See send().
        """
        return await self._request(
            qp,
            sg,
            WROpcode.ATOMIC_FETCH_AND_ADD,
            send_flags,
            wr_id,
            remote_addr=remote_addr,
            rkey=rkey,
            compare_add=compare_add,
        )


def check_wr_id(wr_id: int | None) -> None:
    if wr_id is not None and not 0 <= wr_id < MANAGED:
        raise ValueError(
            f"wr_id is {wr_id}: your own are 0 to 2**63 - 1, those above are chosen for you"
        )

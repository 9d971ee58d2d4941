# SPDX-License-Identifier: MIT
"""One of everything."""

from __future__ import annotations

from cqnotify import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    AccessFlags,
    CompletionChannel,
    Context,
    MWType,
    QPType,
)


class World:
    """One of everything, by name, on a context of its own; the QP sends to itself. Subclasses have
    more, or less by NAMES, or another QP."""

    NAMES: tuple[str, ...] = ("pd", "channel", "cq", "mr", "srq", "qp", "ah", "mw")
    CQE = 16
    SRQ_WR = 8

    def __init__(self, context: Context | str | None = None) -> None:
        self.ctx = context if isinstance(context, Context) else Context(context)
        try:
            self.make()
        except BaseException:
            self.close()
            raise

    def make(self) -> None:
        self.pd = PD(self.ctx)
        self.channel = CompletionChannel(self.ctx)
        self.cq = CQ(self.ctx, self.CQE, channel=self.channel)
        self.mr = MR(self.pd, 4096, access=AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND)
        self.gid = self.ctx.find_gid()
        self.ah = AH(self.pd, dgid=self.gid.gid, sgid_index=self.gid.index)
        if "mw" in self.NAMES:
            self.mw = MW(self.pd, MWType.TYPE_2)
        if "srq" in self.NAMES:
            self.srq = SRQ(self.pd, self.SRQ_WR)
        self.qp = self.new_qp()
        self.connect()

    def new_qp(self) -> QP:
        return QP(self.pd, QPType.RC, send_cq=self.cq)

    def connect(self) -> None:
        self.qp.connect(self.qp.address())

    def close(self) -> None:
        self.ctx.close()
        assert self.ctx.closed

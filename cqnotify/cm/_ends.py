# SPDX-License-Identifier: MIT
"""What a connection, a request and a listener are, whoever waits for them."""

from __future__ import annotations

from typing import Any

from .._core import AH, PD
from ..qp import QP
from ._errors import Event
from ._link import Address, Link


def known(address: Address | None) -> Address:
    assert address is not None, "it has one from its first step on"
    return address


def link_of(end: End) -> Link:
    return end._link


class End:
    """Has a link, and is closed with it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def device(self) -> str | None:
        """The name of the RDMA device; None of a listener on any address."""
        return self._link.id.device

    @property
    def local(self) -> Address:
        """Our own address: a tuple of an IP address and a port."""
        return known(self._link.id.local)

    def close(self) -> None:
        """End it at once, without waiting for the peer. Any thread may call this, and twice."""
        self._link.close()

    def __repr__(self) -> str:
        state = self._link.id.state
        return f"<{type(self).__name__}: {self._link.where}, {state}>"


class BaseConnection(End):
    def __init__(self, link: Link, qp: QP, said: tuple[bytes, dict[str, Any]]) -> None:
        super().__init__(link)
        self._qp = qp
        self._private_data, self._parameters = said

    @property
    def qp(self) -> QP:
        """The QP that is connected."""
        return self._qp

    @property
    def private_data(self) -> bytes:
        """What the peer sent along, padded with zeros to the full size of the message."""
        return self._private_data

    @property
    def parameters(self) -> dict[str, Any]:
        """What the peer said of itself: the fields of struct rdma_conn_param; of datagrams, of
        struct rdma_ud_param."""
        return self._parameters

    @property
    def peer(self) -> Address:
        """The peer's address: a tuple of an IP address and a port."""
        return known(self._link.id.peer)

    @property
    def remote_qpn(self) -> int:
        """The number of the peer's QP."""
        return int(self.parameters["qp_num"])

    @property
    def remote_qkey(self) -> int | None:
        """The Q_Key of the peer's UD QP; None of RC."""
        return self.parameters.get("qkey")

    def make_ah(self, pd: PD) -> AH:
        """Return an address handle that leads to the peer, for datagrams.

        ValueError for RC, and on the side that has accepted: there the datagram itself says where
        it came from, see AH.from_wc().
        """
        path = self.parameters.get("ah_attr")
        if path is None or not path["port_num"]:
            raise ValueError("nothing is known of the way to the peer: see AH.from_wc()")
        return AH(pd, **path)

    @property
    def error(self) -> Exception | None:
        """Why the connection is over; None while it is not."""
        return self._link.error

    @property
    def troubles(self) -> int:
        """How often the kernel has reported trouble on the way to the peer.

        It does so where the carrier is lost or the neighbour does not answer. The connection may
        live on: only a send, or a keepalive, finds out whether the peer still does.
        """
        return self._link.troubles


class BaseRequest(End):
    def __init__(self, link: Link, event: Event) -> None:
        super().__init__(link)
        self._event = event
        link.where = f"accepting {self.peer[0]} port {self.peer[1]}"

    @property
    def peer(self) -> Address:
        """The peer's address: a tuple of an IP address and a port."""
        return known(self._link.id.peer)

    @property
    def private_data(self) -> bytes:
        """What the peer sent along, padded with zeros to the full size of the message."""
        return self._event.private_data

    @property
    def parameters(self) -> dict[str, Any]:
        """What the peer said of itself: the fields of struct rdma_conn_param."""
        return self._event.parameters

    @property
    def is_datagrams(self) -> bool:
        """Whether the peer has a UD QP."""
        return "qkey" in self._event.parameters


class BaseListener(End):
    """Where peers connect to."""

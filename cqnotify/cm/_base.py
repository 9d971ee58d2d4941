# SPDX-License-Identifier: MIT
"""What a connection, a request and a listener are, whoever waits for them."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Any, Final, NamedTuple

from .._core import AH, CMID, PD
from ..qp import QP
from ._errors import Event, parameters_of
from ._local_addresses import ipv6_addresses
from ._steps import Address, Link

OF_A_LINK: Final = ("fe8", "fe9", "fea", "feb")


def known(address: Address | None, cmid: CMID) -> Address:
    """The address; one of the link has its interface, which the kernel leaves out of a request."""
    assert address is not None, "it has one from its first step on"
    host, port = address
    if not host.startswith(OF_A_LINK) or "%" in host or cmid.local is None:
        return address
    own = ip_address(cmid.local[0])
    interfaces = [name for address, name in ipv6_addresses() if address == own]
    return (f"{host}%{interfaces[0]}", port) if len(interfaces) == 1 else address


def link_of(owner: HasLink) -> Link:
    return owner._link


def event_of(request: BaseRequest) -> Event:
    """That which has brought it."""
    return request._event


class Resolved(NamedTuple):
    """Where an address leads to, which `resolve` found out.

    device, port_num: the name of our RDMA device, and its port.
    local: our own IP address there.
    peer: the peer's IP address, which `connect` takes: the one of a name's addresses that leads
        there.
    """

    device: str
    port_num: int
    local: str
    peer: str


def resolved_by(link: Link, address: Address) -> Resolved:
    """What a link has found out; it is not needed any more."""
    found = link.id
    result = Resolved(str(found.device), found.port_num, known(found.local, found)[0], address[0])
    link.close()
    return result


class HasLink:
    """Has a link, and is closed with it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def device(self) -> str | None:
        """The name of the RDMA device; None of a listener on any address."""
        return self._link.id.device

    @property
    def port_num(self) -> int:
        """The port of that device; 0 of a listener on any address."""
        return self._link.id.port_num

    @property
    def local(self) -> Address:
        """Our own address: a tuple of an IP address and a port."""
        return known(self._link.id.local, self._link.id)

    def close(self) -> None:
        """End it at once, without waiting for the peer. Any thread may call this, and twice.

        It takes the kernel some time, for which the calling thread stops.
        """
        self._link.close()

    def __repr__(self) -> str:
        state = self._link.id.state
        return f"<{type(self).__name__}: {self._link.where}, {state}>"


class BaseConnection(HasLink):
    def __init__(self, link: Link, qp: QP, event: Event) -> None:
        self._link = link
        self._qp = qp
        self._private_data, self._said = event.private_data, event.said

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
        return parameters_of(self._said)

    @property
    def peer(self) -> Address:
        """The peer's address: a tuple of an IP address and a port."""
        return known(self._link.id.peer, self._link.id)

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
        return self._link.path_errors


class BaseGroup(HasLink):
    def __init__(self, link: Link, qp: QP, event: Event) -> None:
        super().__init__(link)
        self._qp = qp
        self._parameters = event.parameters

    @property
    def qp(self) -> QP:
        """The UD QP that receives what is sent to the group."""
        return self._qp

    @property
    def address(self) -> str:
        """The IP address of the group."""
        return known(self._link.id.peer, self._link.id)[0]

    @property
    def gid(self) -> IPv6Address:
        """The GID of the group."""
        return IPv6Address(self._parameters["ah_attr"]["dgid"])

    @property
    def remote_qpn(self) -> int:
        """The QP number to which a datagram for the group is sent: that of all members."""
        return int(self._parameters["qp_num"])

    @property
    def remote_qkey(self) -> int:
        """The Q_Key of the group."""
        return int(self._parameters["qkey"])

    def make_ah(self, pd: PD) -> AH:
        """Return an address handle that leads to the group."""
        return AH(pd, **self._parameters["ah_attr"])

    @property
    def error(self) -> Exception | None:
        """Why it is no member any more; None while it is one."""
        return self._link.error


class BaseRequest(HasLink):
    def __init__(self, link: Link, event: Event) -> None:
        self._link = link
        self._event = event
        link.phase = "accepting"

    @property
    def peer(self) -> Address:
        """The peer's address: a tuple of an IP address and a port."""
        return known(self._link.id.peer, self._link.id)

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
        return isinstance(self._event.said, dict)


class BaseListener(HasLink):
    """Where peers connect to."""

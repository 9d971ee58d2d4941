# SPDX-License-Identifier: MIT
"""Connections, requests and listeners: what is the same for event loops and for threads."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Any, Final, NamedTuple

from .._core import AH, CMID, PD
from ..qp import QP
from ._errors import Event, parameters_of
from ._link import Address, Link
from ._local_addresses import ipv6_addresses

OF_A_LINK: Final = ("fe8", "fe9", "fea", "feb")


def known(address: Address | None, cmid: CMID) -> Address:
    """Return an address; a link-local one with its interface, which requests lack in the kernel."""
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
    """Return the event by which a request came."""
    return request._event


class Resolved(NamedTuple):
    """Where an address leads to: what `resolve` returns.

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
    """Return what a link has resolved, and close it."""
    found = link.id
    result = Resolved(str(found.device), found.port_num, known(found.local, found)[0], address[0])
    link.close()
    return result


class HasLink:
    """An object that owns a link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def device(self) -> str | None:
        """The name of the RDMA device; None for a listener on any address."""
        return self._link.id.device

    @property
    def port_num(self) -> int:
        """The port of that device; 0 for a listener on any address."""
        return self._link.id.port_num

    @property
    def local(self) -> Address:
        """Our own address: a tuple of an IP address and a port."""
        return known(self._link.id.local, self._link.id)

    @property
    def closed(self) -> bool:
        """Whether it is over: it was closed, also with its QP or context, or has failed."""
        return self._link.ended

    def close(self) -> None:
        """End it at once, without waiting for the peer. Any thread may call this, also twice.

        A request that is closed is rejected. The call blocks while the kernel closes it, which
        takes some time.
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
        """The peer's private data, padded with zeros to the full size of the message."""
        return self._private_data

    @property
    def parameters(self) -> dict[str, Any]:
        """The peer's parameters: the fields of struct rdma_conn_param, or for datagrams of
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
        """The Q_Key of the peer's UD QP; None for RC."""
        return self.parameters.get("qkey")

    def make_ah(self, pd: PD) -> AH:
        """Return an address handle that leads to the peer, for datagrams.

        pd: the PD for it.

        Raises ValueError for RC, and at the end that has accepted: there make the handle from a
        datagram that came, by AH.from_wc().
        """
        path = self.parameters.get("ah_attr")
        if path is None or not path["port_num"]:
            raise ValueError("the path to the peer is not known here: use AH.from_wc()")
        return AH(pd, **path)

    @property
    def closed(self) -> bool:
        """Whether the connection is over, so that `wait_closed` returns at once: the peer has
        disconnected, or has answered our `disconnect`, the connection has failed, or this end was
        closed. The QP then is in ERR, or closed. `error` says why.
        """
        return self._link.ended

    @property
    def error(self) -> Exception | None:
        """Why the connection is over, or is about to be; None while it goes on.

        A DisconnectedError if either end has disconnected, an UnreachableError or another CMError
        if the connection has failed, a ClosedError if this end was closed.
        """
        return self._link.error

    @property
    def path_errors(self) -> int:
        """How many errors of the path to the peer the kernel has reported.

        It reports that the carrier is lost, or that the neighbour does not answer. The connection
        may survive that: only a send or a keepalive finds out whether the peer is alive.
        """
        return self._link.path_errors


class BaseMulticastGroup(HasLink):
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
        """The QP number to which datagrams for the group are sent."""
        return int(self._parameters["qp_num"])

    @property
    def remote_qkey(self) -> int:
        """The Q_Key of the group."""
        return int(self._parameters["qkey"])

    def make_ah(self, pd: PD) -> AH:
        """Return an address handle that leads to the group; a send needs `remote_qpn` and
        `remote_qkey`, too.

        pd: the PD for it.
        """
        return AH(pd, **self._parameters["ah_attr"])

    @property
    def error(self) -> Exception | None:
        """Why the QP is no member any more; None while it is one."""
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
        """The peer's private data, padded with zeros to the full size of the message."""
        return self._event.private_data

    @property
    def parameters(self) -> dict[str, Any]:
        """The peer's parameters: the fields of struct rdma_conn_param."""
        return self._event.parameters

    @property
    def is_datagrams(self) -> bool:
        """Whether the peer has a UD QP."""
        return isinstance(self._event.said, dict)


class BaseListener(HasLink):
    """Where peers connect to."""

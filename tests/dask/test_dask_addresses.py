# SPDX-License-Identifier: MIT
"""rdma:// addresses, and what is refused before anything is connected."""

from __future__ import annotations

import asyncio
import errno
import importlib.metadata
import ipaddress
import socket
import ssl
from typing import Any

import pytest
from dask_support import SOON, listening, url_of
from distributed.comm import connect, get_address_host, listen, resolve_address
from distributed.comm.addressing import get_address_host_port, get_local_address_for
from distributed.comm.registry import get_backend
from distributed.security import Security
from support import address_of, is_iwarp, start

from cqnotify import Context, dask
from cqnotify.cm import local_addresses


async def nobody(comm: dask.Comm) -> None:
    raise AssertionError("nobody connects")


def test_distributed_finds_the_backend_by_its_entry_point() -> None:
    assert isinstance(get_backend("rdma"), dask.Backend)
    (found,) = importlib.metadata.entry_points(group="distributed.comm.backends", name="rdma")
    assert found.load() is dask.Backend


def test_addresses_are_taken_apart_as_those_of_tcp() -> None:
    assert get_address_host("rdma://10.99.0.1:80") == "10.99.0.1"
    assert get_address_host_port("rdma://10.99.0.1:80") == ("10.99.0.1", 80)
    assert get_address_host_port("rdma://[fe80::1%v0]:80") == ("fe80::1%v0", 80)
    assert resolve_address("rdma://localhost:80") == "rdma://127.0.0.1:80"
    with pytest.raises(ValueError, match="missing port"):
        get_address_host_port("rdma://10.99.0.1")


def test_the_local_address_is_the_one_from_which_the_peer_is_reached(ctx: Context) -> None:
    own = url_of(ctx, 80)
    assert get_local_address_for(own) == own.removesuffix(":80")


async def test_a_port_is_chosen(ctx: Context) -> None:
    async with listening(ctx) as (one, _), listening(ctx) as (other, _):
        assert one.contact_address == one.listen_address
        host, port = one.get_host_port()
        assert host == address_of(ctx)
        assert port not in (0, other.get_host_port()[1])


@pytest.mark.parametrize("url", ["rdma://", "rdma://0.0.0.0:0", "rdma://[::]:0"])
async def test_for_any_address_the_contact_address_can_be_reached(ctx: Context, url: str) -> None:
    async with listening(ctx, url) as (listener, accepted):
        host, port = get_address_host_port(listener.contact_address)
        if is_iwarp(ctx) and "::" in url:  # the kernel listens for each kind by itself
            assert ipaddress.ip_address(host).version == 6
        else:
            assert host == address_of(ctx)
        assert get_address_host_port(listener.listen_address)[1] == port > 0
        client = await connect(listener.contact_address)
        server = await accepted.get()
        await client.close()
        server.abort()


@pytest.mark.parametrize("first", ["0.0.0.0", "own"])
@pytest.mark.parametrize("second", ["0.0.0.0", "own"])
async def test_a_port_that_is_in_use_is_an_error(ctx: Context, first: str, second: str) -> None:
    own = get_address_host(url_of(ctx))
    async with listening(ctx, f"rdma://{first.replace('own', own)}:0") as (listener, _):
        port = listener.get_host_port()[1]
        with pytest.raises(OSError, match="in use") as caught:
            await listen(f"rdma://{second.replace('own', own)}:{port}", nobody)
        assert caught.value.errno == errno.EADDRINUSE  # by which Dask tries the next of a range


async def test_an_address_of_another_host_is_an_error(ctx: Context) -> None:
    with pytest.raises(OSError, match="192.0.2.1") as caught:
        await listen("rdma://192.0.2.1:7471", nobody)
    assert caught.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"])
async def test_loopback_is_refused_in_words(ctx: Context, host: str) -> None:
    words = f"rdma://{host}:7471: no RDMA device is reached by a loopback address".replace("[", ".")
    with pytest.raises(ValueError, match=words.replace("]", ".")) as caught:
        await connect(f"rdma://{host}:7471", timeout=SOON)
    assert address_of(ctx) in str(caught.value)  # which can be used instead
    if host != "127.0.0.1":
        with pytest.raises(ValueError, match="loopback"):
            await listen(f"rdma://{host}:7471", nobody)


# ---- names ------------------------------------------------------------------------------------

NAME = "some.where"


class NameServer:
    """Answers when it is told to. In the event loop's thread nobody may wait for it."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.asked = 0
        self.answers = asyncio.Event()
        self._real = socket.getaddrinfo

    def in_the_loop(self, host: Any, *args: Any, **options: Any) -> Any:
        assert host != NAME or options.get("flags"), "that stops the loop"
        return self._real(host, *args, **options)

    async def getaddrinfo(self, host: str, port: int) -> Any:
        assert host == NAME
        self.asked += 1
        await self.answers.wait()
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "nobody knows it")
        return [self._real(one, port, type=socket.SOCK_STREAM)[0] for one in self.hosts]


@pytest.fixture
def server(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> NameServer:
    it = NameServer("127.0.0.1", local_addresses(ctx)[-1], address_of(ctx))
    monkeypatch.setattr(socket, "getaddrinfo", it.in_the_loop)
    monkeypatch.setattr("cqnotify.cm._async.getaddrinfo", it.getaddrinfo)
    return it


async def test_a_name_server_is_asked_once_though_it_takes_longer_than_an_attempt(
    ctx: Context, server: NameServer
) -> None:
    async with listening(ctx) as (listener, accepted):
        port = listener.get_host_port()[1]
        connector = dask.Backend().get_connector()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connector.connect(f"{NAME}:{port}"), 0.01)
        attempt = await start(connector.connect(f"{NAME}:{port}"))
        server.answers.set()
        comm = await attempt
        assert server.asked == 1
        assert comm.peer_address == f"rdma://{NAME}:{port}"
        assert comm.local_address.startswith(url_of(ctx).removesuffix("0"))
        comm.abort()
        assert accepted.empty(), "there was no handshake"


async def test_all_addresses_of_a_name_are_tried(ctx: Context, server: NameServer) -> None:
    """The last one is that of the listener."""
    server.answers.set()
    async with listening(ctx) as (listener, accepted):
        port = listener.get_host_port()[1]
        client = await connect(f"rdma://{NAME}:{port}", timeout=SOON)
        assert client.same_host
        await client.close()
        (await accepted.get()).abort()


async def test_a_name_that_nobody_knows_is_asked_for_again(
    ctx: Context, server: NameServer
) -> None:
    server.answers.set()
    hosts, server.hosts = server.hosts, ()
    connector = dask.Backend().get_connector()
    async with listening(ctx) as (listener, _):
        port = listener.get_host_port()[1]
        with pytest.raises(OSError, match="does not resolve: nobody knows it"):
            await connector.connect(f"{NAME}:{port}")
        server.hosts = hosts
        (await connector.connect(f"{NAME}:{port}")).abort()
    assert server.asked == 2
    server.hosts = ("127.0.0.1", "::1")
    with pytest.raises(ValueError, match=f"rdma://{NAME}:{port}: no RDMA device"):
        await connect(f"rdma://{NAME}:{port}", timeout=SOON)


async def test_a_listener_asks_for_a_name_in_a_thread(ctx: Context, server: NameServer) -> None:
    server.hosts = ("127.0.0.1", address_of(ctx))
    beginning = await start(listen(f"rdma://{NAME}:0", nobody).__aenter__())
    server.answers.set()
    listener = await beginning
    assert server.asked == 1
    assert listener.get_host_port()[0] == address_of(ctx)
    listener.stop()


async def test_what_a_local_cluster_listens_on_by_itself_is_an_address_of_a_device(
    ctx: Context,
) -> None:
    listener = await listen("rdma://127.0.0.1:0", nobody)
    host, port = listener.get_host_port()
    assert host == address_of(ctx)
    assert listener.contact_address == f"rdma://{host}:{port}"
    listener.stop()


@pytest.mark.parametrize("name", ["require_encryption", "ssl_context"])
async def test_security_is_refused_in_words(ctx: Context, name: str) -> None:
    given = Security(require_encryption=True).get_listen_args("scheduler")
    if name == "ssl_context":
        given = {**given, "require_encryption": False, name: ssl.create_default_context()}
    words = f"nothing encrypted, so a Dask configuration with {name} is refused"
    with pytest.raises(RuntimeError, match=words):
        listen(url_of(ctx), nobody, **given)
    with pytest.raises(RuntimeError, match=words):
        await connect(url_of(ctx, 7471), **given)


async def test_security_without_certificates_changes_nothing(ctx: Context) -> None:
    async with listening(ctx, **Security().get_listen_args("scheduler")) as (listener, accepted):
        args = Security().get_connection_args("client")
        client = await connect(listener.contact_address, **args)
        await client.close()
        (await accepted.get()).abort()

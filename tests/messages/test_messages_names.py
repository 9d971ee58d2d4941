# SPDX-License-Identifier: MIT
"""Names with several addresses: the first that accepts is taken, on the device it leads to."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from messages_support import SOON, address_of, took
from support import eventually, start

from cqnotify import Context, VerbsError, _happy_eyeballs, cm, messages
from cqnotify._happy_eyeballs import first_of
from cqnotify.cm import local_addresses
from cqnotify.messages import RefusedError
from cqnotify.messages._resources import Device

UNREACHABLE = "192.0.2.1"  # of documentation: no route, or no answer
NAME = "some.where"
Names = Callable[..., None]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Sets what the name servers say of NAME."""

    def set_them(*hosts: str) -> None:
        async def getaddrinfo(name: str, port: int) -> list[Any]:
            assert name == NAME
            return [socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0] for host in hosts]

        monkeypatch.setattr("cqnotify.cm._async.getaddrinfo", getaddrinfo)

    return set_them


async def goes_to(listener: messages.Listener, host: Any) -> messages.Connection:
    conn = await messages.connect(host, listener.local[1], timeout=None)
    async with conn, await listener.accept(SOON) as accepted:
        await conn.send(b"1")
        assert took(await accepted.recv(timeout=SOON)) == [b"1"]
    return conn


async def test_the_second_address_is_tried_when_the_first_does_not_accept(
    ctx: Context, names: Names
) -> None:
    own = address_of(ctx)
    other = local_addresses(ctx)[-1]  # of the same device, where nobody listens
    async with messages.listen(own, 0) as listener:
        for hosts in ([other, own], [own, other], [UNREACHABLE, own]):
            names(*hosts)
            assert (await goes_to(listener, NAME)).local[0] == own
            await goes_to(listener, hosts)
    assert Device._known == {}


async def test_the_device_is_that_of_the_address(ctx: Context, ctx2: Context, names: Names) -> None:
    names(address_of(ctx), address_of(ctx2))
    for device in (ctx, ctx2):
        async with messages.listen(address_of(device), 0) as listener:
            conn = await goes_to(listener, NAME)
            assert conn._session.resources.device.name == device.name


async def test_a_silent_address_does_not_keep_the_next_one_waiting(
    ctx: Context, names: Names
) -> None:
    own, other = address_of(ctx), local_addresses(ctx)[-1]
    names(other, own)
    async with (
        messages.listen(own, 0) as listener,
        cm.listen(other, listener.local[1]) as silent,  # which answers nobody
    ):
        assert (await goes_to(listener, NAME)).local[0] == own
        (await silent.get_request(SOON)).close()
    assert Device._known == {}


async def test_the_error_names_each_address(ctx: Context, names: Names) -> None:
    own, other = address_of(ctx), local_addresses(ctx)[-1]
    names(own, other)
    words = f"none of 2 addresses works: .*{re.escape(own)} .*; .*{re.escape(other)} "
    with pytest.raises(cm.RejectedError, match=words) as caught:
        await messages.connect(NAME, 9)
    assert caught.value.reason == cm.RejectReason.INVALID_SERVICE_ID
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert len(caught.value.__cause__.exceptions) == 2
    assert Device._known == {}
    with pytest.raises(RefusedError, match="none of 2 addresses works: .*another version"):
        await refused_by_both(own, other)
    with pytest.raises(ValueError, match="give an address"):
        await messages.connect([], 9)


async def refused_by_both(own: str, other: str) -> None:
    async def refuse(listener: cm.Listener) -> None:
        async for request in listener:
            await request.reject(messages._wire.refusal("another version"))

    async with cm.listen(own, 0) as one, cm.listen(other, one.local[1]) as two:
        tasks = [asyncio.ensure_future(refuse(each)) for each in (one, two)]
        try:
            await messages.connect([own, other], one.local[1])
        finally:
            one.close()
            two.close()
            await asyncio.gather(*tasks)


# ---- the race ---------------------------------------------------------------------------------


class Attempts:
    """Of which each ends as the test says."""

    def __init__(self, *names: str) -> None:
        self.ends: dict[str, asyncio.Future[str]] = {}
        self.cancelled: list[str] = []
        self.abandoned: list[str] = []
        self.attempts = [(name, self._attempt(name)) for name in names]

    def _attempt(self, name: str) -> Callable[[], Coroutine[Any, Any, str]]:
        async def attempt() -> str:
            self.ends[name] = asyncio.get_running_loop().create_future()
            try:
                return await self.ends[name]
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise

        return attempt

    async def race(self) -> asyncio.Future[str]:
        return await start(first_of(self.attempts, self.abandoned.append))

    async def have_begun(self, *names: str) -> None:
        await eventually(lambda: list(self.ends) == list(names))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_happy_eyeballs, "NEXT_ATTEMPT_AFTER", SOON)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_happy_eyeballs, "NEXT_ATTEMPT_AFTER", 0)


async def test_the_next_attempt_begins_when_one_has_failed(patient: None) -> None:
    them = Attempts("a", "b", "c")
    race = await them.race()
    await them.have_begun("a")
    them.ends["a"].set_exception(OSError(1, "a's words"))
    await them.have_begun("a", "b")
    them.ends["b"].set_result("b")
    assert await race == "b"
    assert list(them.ends) == ["a", "b"]
    assert (them.cancelled, them.abandoned) == ([], [])


async def test_or_when_it_does_not_answer(impatient: None) -> None:
    them = Attempts("a", "b", "c")
    race = await them.race()
    await them.have_begun("a", "b", "c")
    assert not race.done(), "the first one may still answer"
    them.ends["b"].set_exception(TimeoutError("b"))
    them.ends["a"].set_result("a")
    assert await race == "a"
    assert them.cancelled == ["c"]


async def test_the_result_of_another_one_is_abandoned(impatient: None) -> None:
    them = Attempts("a", "b", "c")
    race = await them.race()
    await them.have_begun("a", "b", "c")
    them.ends["c"].set_result("c")
    them.ends["b"].set_result("b")
    assert await race == "b"
    assert (them.cancelled, them.abandoned) == (["a"], ["c"])


async def test_all_of_them_end_with_the_race(impatient: None) -> None:
    them = Attempts("a", "b")
    race = await them.race()
    await them.have_begun("a", "b")
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert them.cancelled == ["a", "b"]


async def test_what_is_no_matter_of_the_address_ends_it(impatient: None) -> None:
    them = Attempts("a", "b")
    race = await them.race()
    await them.have_begun("a", "b")
    them.ends["a"].set_exception(ValueError("a's words"))
    with pytest.raises(ValueError, match="a's words"):
        await race
    assert them.cancelled == ["b"]


@pytest.mark.parametrize("refused", [0, 1])
async def test_the_error_is_of_the_kind_that_tells_most(patient: None, refused: int) -> None:
    them = Attempts("10.0.0.1", "10.0.0.2")
    race = await them.race()
    errors: list[OSError] = [VerbsError(113, "no route")]
    errors.insert(refused, ConnectionRefusedError("10.0.0.2: nobody listens"))
    for (name, _), error in zip(them.attempts, errors, strict=True):
        await eventually(lambda name=name: name in them.ends)  # type: ignore[misc]
        them.ends[name].set_exception(error)
    with pytest.raises(ConnectionRefusedError) as caught:
        await race
    text = str(caught.value)
    assert "no route" in text
    assert "10.0.0.2: nobody listens" in text
    assert type(caught.value) is ConnectionRefusedError
    again = VerbsError(113, "no route")
    both = _happy_eyeballs.none_works([("a", again), ("b", again)])
    assert str(both) == "[Errno 113] none of 2 addresses works: a: [Errno 113] no route; b: " + str(
        again
    )
    assert isinstance(both, VerbsError)
    assert both.errno == 113

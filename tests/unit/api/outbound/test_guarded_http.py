"""Resolution of names for requests to clients' URLs, and the pace of responses."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.outbound.guarded_http import (
    MIN_RATE,
    AddressNotAllowed,
    GuardedHttpClient,
    ThreadedResolver,
    TooSlow,
    _Pace,
)
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually

_MORE_THAN_THE_LOOPS_OWN = 40  # threads; the event loop has at most 32


@pytest.mark.parametrize(
    "found", [["10.1.2.3"], ["93.184.215.14", "fd00::1"], [], socket.gaierror(-2, "none")]
)
async def test_names_of_the_private_network_and_unknown_ones_are_told_alike(found: Any) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        if isinstance(found, Exception):
            raise found
        return list(found)

    guarded = GuardedHttpClient(AddressPolicy(), resolve=resolve)
    for request in (
        guarded.get("https://db.corp/", {}, 100, 5.0),
        guarded.post("https://db.corp/", {}, b"", 5.0),
    ):
        with pytest.raises(AddressNotAllowed) as refused:
            await request
        assert str(refused.value) == AddressPolicy().host_refusal("db.corp")
    await guarded.close()


async def test_silent_name_servers_hold_up_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    release, num_waiting = threading.Event(), 0

    def look_up(host: str, port: int, **_options: Any) -> list[Any]:
        nonlocal num_waiting
        if host.startswith("silent"):
            num_waiting += 1
            release.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    resolver = ThreadedResolver(2 * _MORE_THAN_THE_LOOPS_OWN)
    silent = [
        asyncio.ensure_future(resolver(f"silent-{number}.example", 443))
        for number in range(_MORE_THAN_THE_LOOPS_OWN)
    ]
    try:
        await eventually(lambda: num_waiting == _MORE_THAN_THE_LOOPS_OWN)
        assert await resolver("quick.example", 443) == ["192.0.2.1"]
        assert await asyncio.to_thread(threading.active_count) > _MORE_THAN_THE_LOOPS_OWN
        assert not any(look_up.done() for look_up in silent)
    finally:
        release.set()
        await asyncio.gather(*silent)
        resolver.close()


@in_virtual_time
async def test_a_body_must_come_at_the_least_rate_after_its_first_seconds() -> None:
    pace, seconds = _Pace(now()), list[float]()

    async def receive(*rates: int) -> None:
        num_bytes = 0
        async with pace.kept():
            for rate in rates:
                await asyncio.sleep(1.0)
                pace.note(num_bytes := num_bytes + rate)
                seconds.append(now())

    with pytest.raises(TooSlow, match="65,536 bytes a second"):
        await receive(*[MIN_RATE] * 60, *[MIN_RATE // 2] * 60)
    assert 60 + 18 <= len(seconds) <= 60 + 22, "it was ten seconds ahead"

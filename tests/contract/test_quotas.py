"""The contract of quotas, local ones and those that control planes share through Valkey."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator

import pytest

from diffuserve.quotas import valkey as module
from diffuserve.quotas.base import Quotas, Rate
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_quotas
from support.valkey import ValkeyServer
from support.waiting import HANG_SECONDS

SLOW = Rate(0.01)
"""A rate that grants a single call within a test."""


@pytest.fixture
def name() -> str:
    return f"tenant-{secrets.token_hex(4)}"


@pytest.fixture(params=["local", "valkey", "unavailable valkey"])
async def quotas(request: pytest.FixtureRequest) -> AsyncGenerator[Quotas]:
    url: str | None = None
    if request.param != "local":
        server: ValkeyServer = request.getfixturevalue("valkey")
        url = server.url if request.param == "valkey" else "valkey://127.0.0.1:1"
    async with open_quotas(Settings(valkey_url=url)) as quotas:
        yield quotas


@pytest.fixture
async def two(own_valkey: ValkeyServer) -> AsyncGenerator[tuple[Quotas, Quotas]]:
    settings = Settings(valkey_url=own_valkey.url)
    async with open_quotas(settings) as one, open_quotas(settings) as other:
        yield one, other


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a Valkey that is merely slow, as on a busy machine."""
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", HANG_SECONDS)


async def test_a_call_may_count_as_many(quotas: Quotas, name: str) -> None:
    rate = Rate(10)
    granted, refused = await quotas.take(name, rate, 1_000), await quotas.take(name, rate)
    assert (granted.is_granted, refused.is_granted) == (True, False)
    assert 60 < refused.retry_after < 100, "the time in which the others are paid, less a second's burst"


async def test_a_call_that_counts_as_none_asks_whether_one_would_be_granted(
    quotas: Quotas, name: str
) -> None:
    before = [await quotas.take(name, SLOW, 0) for _ in range(3)]
    await quotas.take(name, SLOW)
    after = await quotas.take(name, SLOW, 0)
    assert [allowance.is_granted for allowance in (*before, after)] == [True, True, True, False]


@pytest.mark.usefixtures("patient")
async def test_a_burst_is_granted_and_further_calls_after_retry_after(quotas: Quotas, name: str) -> None:
    rate, start = Rate(2), time.monotonic()
    allowances = [await quotas.take(name, rate)]
    while allowances[-1].is_granted:
        allowances.append(await quotas.take(name, rate))
    num_granted = len(allowances) - 1
    assert rate.burst <= num_granted <= _most_granted(rate, since=start)
    assert (allowances[0].num_left, allowances[-1].num_left) == (1, 0)
    assert 0.0 < allowances[-1].retry_after <= 0.5
    await asyncio.sleep(allowances[-1].retry_after + 0.002)
    assert (await quotas.take(name, rate)).is_granted


def _most_granted(rate: Rate, since: float) -> float:
    """Return the largest number of calls that may have been granted from `since` until now."""
    return rate.burst + rate.per_second * (time.monotonic() - since) + 1


@pytest.mark.usefixtures("patient")
async def test_names_are_counted_separately(quotas: Quotas, name: str) -> None:
    assert [(await quotas.take(name, SLOW)).is_granted for _ in range(2)] == [True, False]
    assert (await quotas.take(f"{name} and another", SLOW)).is_granted


@pytest.mark.usefixtures("patient")
async def test_concurrent_calls_are_all_counted(quotas: Quotas, name: str) -> None:
    rate, start = Rate(20), time.monotonic()
    allowances = await asyncio.gather(*(quotas.take(name, rate) for _ in range(60)))
    num_granted = sum(allowance.is_granted for allowance in allowances)
    assert rate.burst <= num_granted <= _most_granted(rate, since=start)


@pytest.mark.usefixtures("patient")
async def test_control_planes_share_a_quota(two: tuple[Quotas, Quotas], name: str) -> None:
    one, other = two
    allowances = [await quotas.take(name, SLOW) for quotas in (one, other, one, other)]
    assert [allowance.is_granted for allowance in allowances] == [True, False, False, False]
    assert 0.0 < allowances[1].retry_after <= SLOW.interval


@pytest.mark.usefixtures("patient")
async def test_each_control_plane_counts_alone_while_valkey_is_down(
    two: tuple[Quotas, Quotas], own_valkey: ValkeyServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=module.__name__)
    one, other = two
    assert (await one.take(name, SLOW)).is_granted
    own_valkey.kill()
    for quotas in two:
        assert [(await quotas.take(name, SLOW)).is_granted for _ in range(3)] == [True, False, False]
    own_valkey.start()
    async with asyncio.timeout(HANG_SECONDS):
        while sum("is available again" in record.getMessage() for record in caplog.records) < 2:
            await asyncio.gather(*(quotas.take("anybody", Rate(1_000)) for quotas in two))
            await asyncio.sleep(0.01)
    assert (await one.take(name, SLOW)).is_granted, "Valkey came back empty"
    assert not (await other.take(name, SLOW)).is_granted
    assert sum("is unavailable" in record.getMessage() for record in caplog.records) == 2


async def test_a_frozen_valkey_delays_only_the_first_calls(
    two: tuple[Quotas, Quotas], own_valkey: ValkeyServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 10 * HANG_SECONDS)
    quotas, _ = two
    await quotas.take(name, Rate(1_000))
    own_valkey.freeze()  # for the rest of the test
    async with asyncio.timeout(HANG_SECONDS):
        await asyncio.gather(*(quotas.take(name, Rate(1_000)) for _ in range(20)))
        monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 10 * HANG_SECONDS)
        for _ in range(20):
            await quotas.take(name, Rate(1_000))

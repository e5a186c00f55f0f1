"""Slots that tenants take in turn."""

import asyncio

from diffuserve.safety.turns import TenantTurns


async def _call(turns: TenantTurns, tenant: str, served: list[str]) -> None:
    async with turns.turn(tenant):
        served.append(tenant)
        await asyncio.sleep(0)


async def test_a_tenant_waits_for_one_call_of_each_other_tenant() -> None:
    turns, served = TenantTurns(1), list[str]()
    calls = [_call(turns, tenant, served) for tenant in ["ada"] * 5 + ["bob", "eve", "bob"]]
    await asyncio.gather(*calls)
    assert served == ["ada", "ada", "bob", "eve", "ada", "bob", "ada", "ada"]


async def test_as_many_calls_run_as_there_are_slots() -> None:
    turns, num_running, most = TenantTurns(3), 0, 0

    async def call() -> None:
        nonlocal num_running, most
        async with turns.turn("ada"):
            num_running += 1
            most = max(most, num_running)
            await asyncio.sleep(0)
            num_running -= 1

    await asyncio.gather(*(call() for _ in range(20)))
    assert most == 3


async def test_a_canceled_call_passes_its_turn_on() -> None:
    turns, served = TenantTurns(1), list[str]()
    async with turns.turn("ada"):
        canceled = asyncio.create_task(_call(turns, "bob", served))
        waiting = asyncio.create_task(_call(turns, "eve", served))
        await asyncio.sleep(0)
        canceled.cancel()
    await waiting
    assert served == ["eve"]


async def test_a_call_that_is_canceled_as_its_turn_comes_gives_it_back() -> None:
    turns, served = TenantTurns(1), list[str]()
    async with turns.turn("ada"):
        canceled = asyncio.create_task(_call(turns, "bob", served))
        await asyncio.sleep(0)
    canceled.cancel()  # it has the slot, and has not run since
    await asyncio.gather(canceled, return_exceptions=True)
    async with asyncio.timeout(60):
        await _call(turns, "eve", served)
    assert served == ["eve"]

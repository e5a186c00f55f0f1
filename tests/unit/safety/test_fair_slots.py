"""Slots that tenants take in turn."""

import asyncio

from diffuserve.safety.processes.fair_slots import FairSlots


async def _call(turns: FairSlots, tenant: str, served: list[str]) -> None:
    async with turns.turn(tenant):
        served.append(tenant)
        await asyncio.sleep(0)


async def test_a_tenant_waits_for_one_call_of_each_other_tenant() -> None:
    turns, served = FairSlots(1, clock=lambda: 0.0), list[str]()
    calls = [_call(turns, tenant, served) for tenant in ["ada"] * 5 + ["bob", "eve", "bob"]]
    await asyncio.gather(*calls)
    assert served == ["ada", "ada", "bob", "eve", "ada", "bob", "ada", "ada"]


async def test_as_many_calls_run_as_there_are_slots() -> None:
    turns, num_running, most = FairSlots(3), 0, 0

    async def call() -> None:
        nonlocal num_running, most
        async with turns.turn("ada"):
            num_running += 1
            most = max(most, num_running)
            await asyncio.sleep(0)
            num_running -= 1

    await asyncio.gather(*(call() for _ in range(20)))
    assert most == 3


async def test_tenants_share_by_the_seconds_that_their_turns_take() -> None:
    """A tenant whose calls take eight times as long has an eighth of the turns while others wait."""
    now, served = [0.0], list[str]()
    turns = FairSlots(1, clock=lambda: now[0])

    async def call(tenant: str, seconds: float) -> None:
        async with turns.turn(tenant):
            served.append(tenant)
            await asyncio.sleep(0)
            now[0] += seconds

    await asyncio.gather(
        *(call("hog", 8.0) for _ in range(4)), *(call("ada", 1.0) for _ in range(16)), call("bob", 1.0)
    )
    assert served[:2] == ["hog", "ada"], "what is under way is not put down"
    assert served.index("bob") <= 3
    assert served[:19].count("hog") == 2


async def test_a_tenant_that_was_idle_earns_no_turns_by_it() -> None:
    now, served = [0.0], list[str]()
    turns = FairSlots(1, clock=lambda: now[0])

    async def call(tenant: str) -> None:
        async with turns.turn(tenant):
            served.append(tenant)
            await asyncio.sleep(0)
            now[0] += 1.0

    early = asyncio.gather(*(call("ada") for _ in range(9)))
    while len(served) < 6:
        await asyncio.sleep(0)
    await asyncio.gather(early, *(call("bob") for _ in range(3)))
    assert served[6:] in (
        ["bob", "ada", "bob", "ada", "bob", "ada"],
        ["ada", "bob", "ada", "bob", "ada", "bob"],
    )


async def test_a_tenant_holds_no_more_slots_than_each_may() -> None:
    turns, running, most = FairSlots(4, max_each=2), list[str](), 0

    async def call(tenant: str) -> None:
        nonlocal most
        async with turns.turn(tenant):
            running.append(tenant)
            most = max(most, running.count("ada"))
            await asyncio.sleep(0)
            running.remove(tenant)

    async with turns.turn("eve"):
        calls = [asyncio.create_task(call("ada")) for _ in range(8)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60), turns.turn("bob"):
            assert running.count("ada") == 2, "a slot was free for bob"
        await asyncio.gather(*calls)
    assert most == 2


async def test_a_canceled_call_passes_its_turn_on() -> None:
    turns, served = FairSlots(1), list[str]()
    async with turns.turn("ada"):
        canceled = asyncio.create_task(_call(turns, "bob", served))
        waiting = asyncio.create_task(_call(turns, "eve", served))
        await asyncio.sleep(0)
        canceled.cancel()
    await waiting
    assert served == ["eve"]


async def test_a_call_that_is_canceled_as_its_turn_comes_gives_it_back() -> None:
    turns, served = FairSlots(1), list[str]()
    async with turns.turn("ada"):
        canceled = asyncio.create_task(_call(turns, "bob", served))
        await asyncio.sleep(0)
    canceled.cancel()  # it has the slot, and has not run since
    await asyncio.gather(canceled, return_exceptions=True)
    async with asyncio.timeout(60):
        await _call(turns, "eve", served)
    assert served == ["eve"]

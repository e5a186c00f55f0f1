"""Strategies of tenants who want more than their share, played against an honest tenant of the same plan."""

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.job import Band
from diffuserve.domain.tenant import Plan
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.arena import NUM_STEPS, Arena, Canceler, Player, Steady

SECONDS = 600.0
PLAN = Plan(name="free", weight=1, max_running=16, max_queued=10_000, highest_band=Band.INTERACTIVE)
CONFIG = StoreConfig(plans={"free": PLAN}, default_plan="free", lease_seconds=60.0)


def big(arena):
    return {"cost": 60.0}


class Mix:
    def __init__(self, *players): self.players = players
    async def act(self, arena):
        for p in self.players: await p.act(arena)


class Inflate:
    """alone at first: a huge job, small ones; cancel the huge one when the honest tenant has come."""
    def __init__(self): self.huge = None; self.done = False
    async def act(self, arena):
        if self.huge is None:
            self.huge = await arena.submit("eve", 3000.0)
        if arena.now > 100 and not self.done:
            self.done = True
            await arena.cancel(self.huge)
        await Steady("eve").act(arena)


class Hoard:
    """idle for long; enters by a band that nobody uses."""
    def __init__(self, since, **values): self.since=since; self.values=values; self.entered=False
    async def act(self, arena):
        if arena.now < self.since: return
        if not self.entered:
            self.entered=True
            await arena.submit("eve", **self.values)
        await Steady("eve").act(arena)


class OneOf:
    """retries"""


GAMES = {
    "honest": lambda: Steady("eve"),
    "cancel": lambda: Canceler(Steady("eve")),
    "hangup": lambda: Canceler(Steady("eve"), NUM_STEPS),
    "first": lambda: Canceler(Steady("eve", 40), 1),
    "largest": lambda: Steady("eve", 6, big),
    "small": lambda: Steady("eve", 200, lambda a: {"cost": 1.0}),
    "flood": lambda: Steady("eve", 300),
    "deadline": lambda: Steady("eve", 6, lambda a: {"finish_in": 5.0, "best_effort": True}),
    "interactive": lambda: Steady("eve", 6, lambda a: {"band": Band.INTERACTIVE}),
    "batchband": lambda: Steady("eve", 6, lambda a: {"band": Band.BATCH}),
    "blocked": lambda: Steady("eve", 6, lambda a: {"fails": "output_blocked"}),
    "broken": lambda: Steady("eve", 6, lambda a: {"fails": "broken"}),
    "underpriced": lambda: Steady("eve", 6, lambda a: {"cost": 1.0, "actual": 4.0}),
    "timeout": lambda: Steady("eve", 6, lambda a: {"timeout": 0.1}),
    "preempt": lambda: Mix(Steady("eve", 3, lambda a: {"band": Band.BATCH, "cost": 40.0}), Canceler(Steady("eve2", 1, lambda a: {"band": Band.INTERACTIVE, "tenant": "eve"}))),
    "inflate": lambda: Inflate(),
    "hoard0": lambda: Steady("eve", since=300),
    "hoard-band": lambda: Hoard(300, band=Band.BATCH),
    "hoard-model": lambda: Hoard(300, model="parked"),
}


@pytest.mark.parametrize("says", [True, False])
async def test_x(tmp_path: Path, clock: FakeClock, says: bool) -> None:
    total = time.process_time()
    for name, make in GAMES.items():
        if name == "preempt": continue
        config = CONFIG
        store = JobStore(f"sqlite:///{tmp_path}/{name}.db", MemoryEventBus(), config, clock)
        await store.open()
        arena = Arena(store, clock, began_at=clock.now)
        t = time.process_time()
        await arena.add_worker("tiny", says_seconds=says)
        from support.store_driver import add_worker
        await add_worker(store, "parked")
        ada = Steady("ada", since=60 if name == "inflate" else 0)
        attacker = make()
        await arena.play([ada, attacker], SECONDS)
        since = 300 if name.startswith("hoard") else 60 if name=="inflate" else 0
        print(f"{name:12} eve {arena.used['eve']:7.1f} of {(600-since)/2:6.1f} ada {arena.used['ada']:7.1f}  p95", {k: round(sorted(v)[int(.95*len(v))],1) for k, v in arena.waits.items()}, "cpu %.2f" % (time.process_time()-t))
        await store.close()
    print("total", time.process_time()-total)

"""Strategies of a tenant who wants more than her share, against an honest one of the same plan."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffuserve.domain.jobs.job import Band, Job
from diffuserve.domain.tenant import Plan
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.fairness import BAND_SECONDS
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.arena import COST, NUM_STEPS, TOKENS, Arena, Player

SECONDS = 600.0
PLAN = Plan(name="free", weight=1, max_running=16, max_queued=10_000, highest_band=Band.INTERACTIVE)
CONFIG = StoreConfig(plans={"free": PLAN}, default_plan="free", lease_seconds=60.0, heartbeat_seconds=10.0)
HONEST, ATTACKER = "ada", "eve"
_IDLE = 200.0
"""Seconds for which a tenant is idle that hopes to be owed something for it."""
_LONG = 60.0
_AFFINITY = CONFIG.affinity_seconds


@dataclass
class Steady:
    """A tenant that always has `depth` jobs open, from a time on."""

    tenant: str = ATTACKER
    depth: int = 4
    values: Mapping[str, Any] = field(default_factory=dict)
    since: float = 0.0
    models: Sequence[str] = ("tiny",)
    own: list[Job] = field(default_factory=list)
    num_submitted: int = 0

    async def act(self, arena: Arena) -> None:
        self.own = [job for job in self.own if arena.is_open(job)]
        while arena.now >= self.since and len(self.own) < self.depth:
            model = self.models[self.num_submitted % len(self.models)]
            self.own.append(await arena.submit(self.tenant, **({"model": model} | dict(self.values))))
            self.num_submitted += 1


@dataclass
class Canceler(Steady):
    """Cancels each of its jobs once `step` steps of it are done, and submits the next one."""

    step: int = NUM_STEPS - 1

    async def act(self, arena: Arena) -> None:
        for job in self.own:
            running = arena.running.get(job.id)
            if running is not None and running.step >= self.step and not running.is_canceled:
                await arena.cancel(job)
        await super().act(arena)


@dataclass
class Repeater(Steady):
    """Submits each job again under its idempotency key, after it ended as well as before."""

    keys: "itertools.count[int]" = field(default_factory=itertools.count)

    async def act(self, arena: Arena) -> None:
        self.values = {"idempotency_key": f"key-{next(self.keys) // 3}", "fingerprint": "alike"}
        await super().act(arena)


@dataclass
class SharedDownload:
    """Several players at once."""

    players: Sequence[Player]

    async def act(self, arena: Arena) -> None:
        for player in self.players:
            await player.act(arena)


@dataclass
class AtOnce:
    """Submits one job at a time, and cancels it at another."""

    values: Mapping[str, Any]
    at: float = 0.0
    until: float = SECONDS * 10
    job: Job | None = None
    is_canceled: bool = False

    async def act(self, arena: Arena) -> None:
        if self.job is None and arena.now >= self.at:
            self.job = await arena.submit(ATTACKER, **self.values)
        elif self.job is not None and arena.now >= self.until and not self.is_canceled:
            self.is_canceled = True
            await arena.cancel(self.job)


@dataclass
class PutDown(Steady):
    """Cancels its batch jobs once they were put down, with what they have done in a checkpoint."""

    async def act(self, arena: Arena) -> None:
        for job in self.own:
            if job.id in arena.kept and job.id not in arena.running:
                await arena.cancel(job)
        await super().act(arena)


@dataclass(frozen=True)
class Game:
    """A strategy against an honest tenant, both of which have work from `since` on.

    `delay` are the seconds for which it may have others wait once: a job that is long, or the lead that bands
    and models in memory give. A strategy is `like` another one if that takes the same path through the store
    and gave more, or as much, before it was closed.
    """

    attacker: Callable[[], Player]
    honest: Callable[[], Player] = lambda: Steady(HONEST)
    since: float = 0.0
    models: Sequence[str] = ("tiny",)
    load_seconds: float = 0.0
    says_seconds: bool = True
    delay: float = 0.0
    like: str = ""


def steadily(depth: int = 4, **values: Any) -> Callable[[], Player]:
    return lambda: Steady(depth=depth, values=values)


def _honest_from(since: float, **values: Any) -> Callable[[], Player]:
    return lambda: Steady(HONEST, since=since, values=values)


_MODELS = ("tiny", "m1", "m2", "m3")

GAMES: Mapping[str, Game] = {
    "honest": Game(steadily()),
    "cancels at 80 %": Game(Canceler),
    "cancels at 80 %, of a worker that does not say what it took": Game(Canceler, says_seconds=False),
    "cancels after the first step": Game(lambda: Canceler(depth=12, step=1), like="cancels at 80 %"),
    "hangs up at the end": Game(lambda: Canceler(step=NUM_STEPS), like="cancels at 80 %"),
    "the largest requests": Game(steadily(cost=_LONG), delay=_LONG),
    "a flood": Game(steadily(depth=100)),
    "a flood of small requests": Game(steadily(depth=100, cost=COST / 3), like="a flood"),
    "small requests beside large ones": Game(
        steadily(depth=20, cost=COST / 2),
        _honest_from(0.0, cost=2 * COST, step_tokens=4 * TOKENS),
        delay=_LONG + BAND_SECONDS,  # the honest tenant's own jobs are twice as long
    ),
    "several keys": Game(lambda: SharedDownload([Steady(), Steady()]), like="a flood"),
    "repeats under idempotency keys": Game(Repeater),
    "deadlines that are near": Game(steadily(finish_in=5.0, best_effort=True)),
    "everything interactive": Game(steadily(band=Band.INTERACTIVE), delay=BAND_SECONDS),
    "everything batch, in a flood": Game(steadily(depth=100, band=Band.BATCH), delay=BAND_SECONDS),
    "blocked at the end": Game(steadily(fails="output_blocked"), like="cancels at 80 %"),
    "broken at the end, and tried again": Game(steadily(fails="broken")),
    "timeouts that are short": Game(steadily(timeout=0.1)),
    "costs four times the prediction": Game(steadily(cost=COST / 4, actual=COST)),
    "costs a quarter of the prediction": Game(
        steadily(cost=4 * COST, actual=COST), like="costs four times the prediction"
    ),
    "another model that is in memory": Game(
        lambda: Steady(models=("m1",)),
        models=_MODELS[:2],
        load_seconds=2.0,
        delay=_AFFINITY,
        like="all models",
    ),
    "all models": Game(
        lambda: Steady(depth=24, models=_MODELS), models=_MODELS, load_seconds=2.0, delay=_AFFINITY
    ),
    "puts its own batch jobs down": Game(
        lambda: SharedDownload(
            [
                PutDown(depth=3, values={"band": Band.BATCH, "cost": _LONG}),
                Steady(depth=1, values={"band": Band.INTERACTIVE}),
            ]
        ),
        _honest_from(0.0, band=Band.BATCH),
        delay=_LONG,
    ),
    "a huge job that is canceled once others have come": Game(
        lambda: SharedDownload([AtOnce({"cost": 3_000.0}, until=_IDLE + 60.0), Steady()]),
        _honest_from(_IDLE),
        since=_IDLE,
    ),
    "comes back after a while": Game(
        lambda: Steady(since=_IDLE), since=_IDLE, like="comes back beside a job that nobody can run"
    ),
    "comes back by a band of its own": Game(
        lambda: SharedDownload([AtOnce({"band": Band.BATCH}, at=_IDLE - 10.0), Steady(since=_IDLE)]),
        since=_IDLE,
    ),
    "comes back beside a job that nobody can run": Game(
        lambda: SharedDownload([AtOnce({"model": "parked"}), Steady(since=_IDLE)]), since=_IDLE
    ),
    "comes back beside an exact job": Game(
        lambda: SharedDownload([AtOnce({"exact": True}), Steady(since=_IDLE)]),
        since=_IDLE,
        like="comes back beside a job that nobody can run",
    ),
}


@dataclass(frozen=True)
class Outcome:
    """The attacker's device-seconds in parts of a fair share, and the honest tenant's p95 wait in seconds."""

    share: float
    wait: float


async def play(game: Game, folder: Path) -> Outcome:
    """Play a game for ten minutes, from the time on that both have work."""
    async with _arena(folder) as arena:
        await arena.add_worker(*game.models, load_seconds=game.load_seconds, says_seconds=game.says_seconds)
        await arena.offer("parked")
        players = [game.honest(), game.attacker()]
        await arena.play(players, game.since)
        before = dict(arena.used)
        arena.waits.clear()
        await arena.play(players, SECONDS)
        used = {who: arena.used[who] - before.get(who, 0.0) for who in (HONEST, ATTACKER)}
    waits = sorted(arena.waits[HONEST])
    return Outcome(used[ATTACKER] / (sum(used.values()) / 2), waits[int(0.95 * len(waits))])


@asynccontextmanager
async def _arena(folder: Path) -> AsyncIterator[Arena]:
    clock = FakeClock()
    store = JobStore(f"sqlite:///{folder}/jobs.db", MemoryEventBus(), CONFIG, clock)
    await store.open()
    try:
        yield Arena(store, clock, began_at=clock.now)
    finally:
        await store.close()

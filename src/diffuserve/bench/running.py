"""A whole run: warm-up, the load on each server in turn, round by round, and the search for the knee."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from diffuserve.bench.arrivals import Ramp, arrivals, until
from diffuserve.bench.figures import Figures, figures_of
from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import Reply
from diffuserve.bench.own_load import OwnLoad, OwnLoadMeter
from diffuserve.bench.playing import Draw, Due, Played, Player
from diffuserve.bench.slo import Slo
from diffuserve.bench.sweep import Probe, knee, next_rate
from diffuserve.bench.targets import Address, LoadTarget
from diffuserve.bench.watching import Watched, watching
from diffuserve.domain.errors import InvalidParams

Show = Callable[[str, Played], None]
"""Is told every half second what is played and how far it is."""
_SHOW_SECONDS = 0.5
_SWEEP_PRECISION = 0.05
_MOST_PROBES = 24


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What is to be played. With `at_once` it is a closed loop, else an open one at the rate of `ramp`.

    `requests` makes those of a round, the same at every call: `count` of them, or as many as are due in
    `seconds`; `dues`, where it is given, has their due times. Each of the `num_rounds` has a seed of its own.
    """

    requests: Callable[[int], Iterator[LoadRequest]]
    count: int | None
    seconds: float | None = None
    ramp: Ramp | None = None
    burstiness: float | None = 1.0
    at_once: int | None = None
    dues: Sequence[float] | None = None
    num_warmup: int = 0
    slo: Slo | None = None
    is_sweep: bool = False
    num_rounds: int = 1
    price_per_hour: float | None = None
    timeout_seconds: float = 600.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A load on one server, in one round; `watched` is what it says of itself meanwhile."""

    address: Address
    played: Played
    figures: Figures
    own: OwnLoad
    rate: float | None = None
    round_number: int = 1
    watched: Watched = field(default_factory=Watched)
    is_interrupted: bool = False


@dataclass
class BenchRun:
    """What a run has measured so far, in the order in which it was; of a sweep, each rate that was tried."""

    measured: list[Measured] = field(default_factory=list)
    is_sweep: bool = False
    is_interrupted: bool = False

    def of(self, address: Address) -> list[Measured]:
        """Return the loads on one server."""
        return [each for each in self.measured if each.address == address]

    def knee(self, address: Address) -> float | None:
        """Return the highest rate that kept the objective."""
        probes = [Probe(each.rate, bool(each.figures.is_kept)) for each in self.of(address) if each.rate]
        return knee(probes)


@dataclass(frozen=True)
class Server:
    """A server under load, with the key of each tenant that has one of its own."""

    address: Address
    target: LoadTarget
    key: str | None = None
    tenant_keys: Mapping[str, str] = field(default_factory=dict)


async def run_all(
    servers: Sequence[Server], plan: BenchPlan, run: BenchRun, show: Show, checker: Executor | None = None
) -> None:
    """Play the plan on each server in turn, round by round, and put what is measured into `run` as it is.

    The threads of `checker` look at outputs, if there are any.

    Raise `InvalidParams` if a server draws nothing at all in its warm-up; nothing was measured then.
    """
    run.is_sweep = plan.is_sweep
    for server in servers:
        await _warm_up(server, plan, show)
    if plan.is_sweep:
        for server in servers:
            await _sweep(server, plan, run, show, checker)
        return
    for number in range(1, plan.num_rounds + 1):
        for server in servers:
            await _measure(_Load(server, plan, plan.ramp, number), run, show, checker)


async def _warm_up(server: Server, plan: BenchPlan, show: Show) -> None:
    """Send some requests, one after the other, whose times count nowhere."""
    async with _drawing_on(server, plan.timeout_seconds) as (draw, _):
        player = Player(draw, plan.timeout_seconds)
        async with _shown(f"{server.address}: warm-up", player.played, show):
            await player.play_closed(islice(plan.requests(1), plan.num_warmup), 1)
    errors = [each.error for each in player.played.outcomes]
    if errors and all(errors):
        raise InvalidParams(
            "servers", str(server.address), f"{errors[0]}, also at every other warm-up request"
        )


async def _sweep(
    server: Server, plan: BenchPlan, run: BenchRun, show: Show, checker: Executor | None
) -> None:
    assert plan.ramp is not None
    probes: list[Probe] = []
    for _ in range(_MOST_PROBES):
        rate = next_rate(probes, plan.ramp.last, _SWEEP_PRECISION)
        if rate is None:
            return
        found = await _measure(_Load(server, plan, Ramp.steady(rate)), run, show, checker)
        probes.append(Probe(rate, bool(found.figures.is_kept)))


@dataclass(frozen=True)
class _Load:
    """What is played on one server at once."""

    server: Server
    plan: BenchPlan
    ramp: Ramp | None
    round_number: int = 1

    def __str__(self) -> str:
        rate = "" if self.ramp is None else f": {_rate(self.ramp)}"
        of_all = f", round {self.round_number} of {self.plan.num_rounds}" if self.plan.num_rounds > 1 else ""
        return f"{self.server.address}{rate}{of_all}"

    def dues(self) -> Iterator[Due]:
        """Return the requests of an open loop with their due times."""
        plan = self.plan
        seed = plan.seed + self.round_number - 1
        times = (
            iter(plan.dues) if plan.dues else arrivals(self.ramp or Ramp.steady(1.0), plan.burstiness, seed)
        )
        due = until(plan.seconds, times) if plan.seconds else times
        return (Due(asked, second) for asked, second in zip(self.requests(), due, strict=False))

    def requests(self) -> Iterator[LoadRequest]:
        return islice(self.plan.requests(self.round_number), self.plan.count)

    async def play(self, player: Player) -> None:
        if self.plan.at_once is None:
            await player.play_open(self.dues())
        else:
            await player.play_closed(self.requests(), self.plan.at_once)


async def _measure(load: _Load, run: BenchRun, show: Show, checker: Executor | None) -> Measured:
    plan, ramp, is_whole = load.plan, load.ramp, False
    async with _drawing_on(load.server, plan.timeout_seconds) as (draw, http):
        player = Player(draw, plan.timeout_seconds, checker)
        meter = OwnLoadMeter(load.server.address.local_processes())
        async with watching(load.server.target, http) as watched:
            try:
                async with _shown(str(load), player.played, show):
                    await load.play(player)
                is_whole = True
            finally:  # Ctrl-C: what was measured is kept
                played = player.played
                found = Measured(
                    address=load.server.address,
                    played=played,
                    figures=figures_of(
                        played.outcomes, played.seconds, slo=plan.slo, price_per_hour=plan.price_per_hour
                    ),
                    own=meter.read(),
                    rate=ramp.last if ramp and ramp.first == ramp.last else None,
                    round_number=load.round_number,
                    watched=watched,
                    is_interrupted=not is_whole,
                )
                run.measured.append(found)
                run.is_interrupted |= not is_whole
    return found


@asynccontextmanager
async def _drawing_on(server: Server, timeout_seconds: float) -> AsyncIterator[tuple[Draw, Http]]:
    """Give what draws on a server, with the key of the tenant that asks, and its connections."""
    shared = Http(server.address.url, server.key, timeout_seconds)
    own = {name: Http(server.address.url, key, timeout_seconds) for name, key in server.tenant_keys.items()}

    async def draw(asked: LoadRequest) -> Reply:
        return await server.target.draw(own.get(asked.tenant or "", shared), asked)

    try:
        yield draw, shared
    finally:
        for http in (shared, *own.values()):
            await http.close()


@asynccontextmanager
async def _shown(title: str, played: Played, show: Show) -> AsyncIterator[None]:
    async def tell() -> None:
        while True:
            show(title, played)
            await asyncio.sleep(_SHOW_SECONDS)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        show(title, played)


def _rate(ramp: Ramp) -> str:
    if ramp.first == ramp.last:
        return f"{ramp.last:.3g} a second"
    return f"{ramp.first:.3g} to {ramp.last:.3g} a second over {ramp.seconds:g} s"

"""A whole run: warm-up, the load on each server in turn, and the search for the knee."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
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
from diffuserve.domain.errors import InvalidParams

Show = Callable[[str, Played], None]
"""Is told every half second what is played and how far it is."""
_SHOW_SECONDS = 0.5
_SWEEP_PRECISION = 0.05
_MOST_PROBES = 24


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What is to be played. With `at_once` it is a closed loop, else an open one at the rate of `ramp`.

    `requests` makes the same requests at every call, `count` of them, or as many as are due in `seconds`;
    `dues`, where it is given, has their due times.
    """

    requests: Callable[[], Iterator[LoadRequest]]
    count: int | None
    seconds: float | None = None
    ramp: Ramp | None = None
    burstiness: float | None = 1.0
    at_once: int | None = None
    dues: Sequence[float] | None = None
    num_warmup: int = 0
    slo: Slo | None = None
    is_sweep: bool = False
    price_per_hour: float | None = None
    timeout_seconds: float = 600.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A load on one server."""

    address: Address
    played: Played
    figures: Figures
    own: OwnLoad
    rate: float | None = None
    is_interrupted: bool = False


@dataclass
class BenchRun:
    """What a run has measured so far, server by server; rates of a sweep stand beside each other."""

    measured: list[Measured] = field(default_factory=list)
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


async def run_all(servers: Sequence[Server], plan: BenchPlan, run: BenchRun, show: Show) -> None:
    """Play the plan on each server in turn, and put what is measured into `run` as it is.

    Raise `InvalidParams` if a server draws nothing at all in its warm-up; nothing was measured then.
    """
    for server in servers:
        async with _draw_on(server, plan.timeout_seconds) as draw:
            await _warm_up(server, draw, plan, show)
    for server in servers:
        async with _draw_on(server, plan.timeout_seconds) as draw:
            if plan.is_sweep:
                await _sweep(server, draw, plan, run, show)
            else:
                await _measure(server, draw, plan, plan.ramp, run, show)


async def _warm_up(server: Server, draw: Draw, plan: BenchPlan, show: Show) -> None:
    """Send some requests, one after the other, whose times count nowhere."""
    player = Player(draw, plan.timeout_seconds)
    async with _shown(f"{server.address}: warm-up", player.played, show):
        await player.play_closed(islice(plan.requests(), plan.num_warmup), 1)
    errors = [each.error for each in player.played.outcomes]
    if errors and all(errors):
        raise InvalidParams(
            "servers", str(server.address), f"{errors[0]}, also at every other warm-up request"
        )


async def _sweep(server: Server, draw: Draw, plan: BenchPlan, run: BenchRun, show: Show) -> None:
    assert plan.ramp is not None
    probes: list[Probe] = []
    for _ in range(_MOST_PROBES):
        rate = next_rate(probes, plan.ramp.last, _SWEEP_PRECISION)
        if rate is None:
            return
        found = await _measure(server, draw, plan, Ramp.steady(rate), run, show)
        probes.append(Probe(rate, bool(found.figures.is_kept)))


async def _measure(
    server: Server, draw: Draw, plan: BenchPlan, ramp: Ramp | None, run: BenchRun, show: Show
) -> Measured:
    player, is_whole = Player(draw, plan.timeout_seconds), False
    meter = OwnLoadMeter(server.address.local_processes())
    title = str(server.address) if ramp is None else f"{server.address}: {_rate(ramp)}"
    try:
        async with _shown(title, player.played, show):
            await _play(player, plan, ramp)
        is_whole = True
    finally:  # Ctrl-C: what was measured is kept
        played = player.played
        found = Measured(
            address=server.address,
            played=played,
            figures=figures_of(
                played.outcomes, played.seconds, slo=plan.slo, price_per_hour=plan.price_per_hour
            ),
            own=meter.read(),
            rate=ramp.last if ramp and ramp.first == ramp.last else None,
            is_interrupted=not is_whole,
        )
        run.measured.append(found)
        run.is_interrupted |= not is_whole
    return found


async def _play(player: Player, plan: BenchPlan, ramp: Ramp | None) -> None:
    requests = islice(plan.requests(), plan.count)
    if plan.at_once is not None:
        await player.play_closed(requests, plan.at_once)
        return
    times = iter(plan.dues) if plan.dues else arrivals(ramp or Ramp.steady(1.0), plan.burstiness, plan.seed)
    due = until(plan.seconds, times) if plan.seconds else times
    await player.play_open(Due(asked, second) for asked, second in zip(requests, due, strict=False))


@asynccontextmanager
async def _draw_on(server: Server, timeout_seconds: float) -> AsyncIterator[Draw]:
    """Give what draws on a server, with the key of the tenant that asks."""
    shared = Http(server.address.url, server.key, timeout_seconds)
    own = {name: Http(server.address.url, key, timeout_seconds) for name, key in server.tenant_keys.items()}

    async def draw(asked: LoadRequest) -> Reply:
        return await server.target.draw(own.get(asked.tenant or "", shared), asked)

    try:
        yield draw
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

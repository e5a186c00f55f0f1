"""What a person asks for, and the plan that follows; everything is refused here, before anything is sent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from diffuserve.bench.arrivals import Ramp
from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import RequestFault
from diffuserve.bench.running import BenchPlan, Server
from diffuserve.bench.slo import parse_slo
from diffuserve.bench.targets import Address, TargetOptions, make_target
from diffuserve.bench.traces import dues_of, load_trace
from diffuserve.bench.workloads import load_workload
from diffuserve.domain.errors import InvalidParams

DEFAULT_COUNT = 100
DEFAULT_AT_ONCE = 4
DEFAULT_SIDE = 1024
_ASK_SECONDS = 10.0


class _Keys(BaseModel):
    """Keys by the server's URL and by the tenant's name; a command line would show them to every user."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: Mapping[str, str] = {}
    tenants: Mapping[str, str] = {}

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Return the keys in a file, none without one. Raise `InvalidParams`, which shows none."""
        if path is None:
            return cls()
        try:
            return cls.model_validate(yaml.safe_load(path.read_text()))
        except OSError as error:
            raise InvalidParams("keys_file", str(path), f"cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, ValidationError):
            remedy = "must be YAML: servers: {URL: KEY} and tenants: {NAME: KEY}"
            raise InvalidParams("keys_file", str(path), remedy) from None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What was asked for; names are the command's options. `burstiness` is None for a constant rate."""

    servers: Sequence[str]
    model: str | None
    workload: str
    input_file: Path | None
    fixed_schedule: bool
    request_rate: float | None
    request_rate_end: float | None
    burstiness: float | None
    concurrency: int | None
    request_count: int | None
    benchmark_duration: float | None
    warmup_request_count: int
    slo: str | None
    sweep: bool
    rounds: int
    price_per_hour: float | None
    api_key: str | None
    keys_file: Path | None
    base_side: int | None
    template: Path | None
    request_timeout: float
    random_seed: int

    def check(self) -> None:
        """Raise `InvalidParams` for options that say two things, or need another."""
        for is_broken, name, remedy in self._rules():
            if is_broken:
                raise InvalidParams(name, getattr(self, name), remedy)

    def _rules(self) -> tuple[tuple[bool, str, str], ...]:
        """Return what may not be, under which option, and what to do then."""
        has_rate, is_closed = self.request_rate is not None, self.concurrency is not None
        ramps, lasts = self.request_rate_end is not None, self.benchmark_duration is not None
        return (
            (is_closed and has_rate, "concurrency", "would cap an open loop, and forgive a slow server so"),
            (self.sweep and not self.slo, "sweep", "needs an objective to keep: --slo p95<2s"),
            (self.sweep and is_closed, "sweep", "changes the rate; leave out --concurrency"),
            (self.sweep and ramps, "sweep", "plays steady rates; leave out --request-rate-end"),
            (
                self.sweep and self.rounds > 1,
                "rounds",
                "compares loads; leave out --sweep, which seeks a rate",
            ),
            (ramps and not has_rate, "request_rate_end", "needs --request-rate, where it begins"),
            (ramps and not lasts, "request_rate_end", "needs --benchmark-duration, over which it changes"),
            (lasts and not (has_rate or self.sweep), "benchmark_duration", "needs --request-rate"),
            (self.fixed_schedule and not self.input_file, "fixed_schedule", "needs --input-file"),
            (self.fixed_schedule and has_rate, "fixed_schedule", "has no rate; leave out --request-rate"),
            (
                self.fixed_schedule and is_closed,
                "fixed_schedule",
                "leaves no choice; leave out --concurrency",
            ),
            (self.fixed_schedule and self.sweep, "fixed_schedule", "leaves no choice; leave out --sweep"),
        )

    def told(self) -> dict[str, object]:
        """Return what shaped the load, for reports; no key is among it."""
        hidden = {"api_key", "keys_file", "template"}
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(self).items()
            if name not in hidden and value not in (None, False, ())
        }


def servers_of(given: Given) -> list[Server]:
    """Return the servers with their keys. Raise `InvalidParams`."""
    addresses = [Address.parse(text) for text in given.servers]
    options = TargetOptions(given.model, given.template)
    keys = _Keys.load(given.keys_file)
    # Our own key goes to our own servers alone, unless the file says otherwise.
    own = {each.url: given.api_key for each in addresses if each.kind == "diffuserve"}
    return [
        Server(each, make_target(each, options), keys.servers.get(each.url, own.get(each.url)), keys.tenants)
        for each in addresses
    ]


def plan_of(given: Given, base_side: int) -> BenchPlan:
    """Return the load for pictures of a model whose own are `base_side` square. Raise `InvalidParams`."""
    given.check()
    requests, dues, num_given = _requests(given, base_side)
    is_open = given.request_rate is not None or given.sweep or dues is not None
    default = None if given.benchmark_duration else DEFAULT_COUNT
    return BenchPlan(
        requests=requests,
        count=given.request_count or num_given or default,
        seconds=given.benchmark_duration,
        ramp=_ramp(given) if is_open and dues is None else None,
        burstiness=given.burstiness,
        at_once=None if is_open else given.concurrency or DEFAULT_AT_ONCE,
        dues=dues,
        num_warmup=given.warmup_request_count,
        slo=parse_slo(given.slo) if given.slo else None,
        is_sweep=given.sweep,
        num_rounds=given.rounds,
        price_per_hour=given.price_per_hour,
        timeout_seconds=given.request_timeout,
        seed=given.random_seed,
    )


async def base_side_of(given: Given, servers: Sequence[Server]) -> int:
    """Return the side of the model's own pictures: as given, as a diffuserve server says, or the usual."""
    if given.base_side is not None:
        return given.base_side
    for server in servers:
        if server.address.kind == "diffuserve" and (side := await _own_side(server, given.model)):
            return side
    return DEFAULT_SIDE


async def _own_side(server: Server, model: str | None) -> int | None:
    http = Http(server.address.url, server.key, _ASK_SECONDS)
    try:
        models = (await http.json("GET", "/v1/models"))["data"]
    except RequestFault as error:
        raise InvalidParams("servers", server.address.url, f"{error}; is it running?") from error
    finally:
        await http.close()
    found = next((each for each in models if model in (None, each["id"])), None)
    if found is None:
        known = ", ".join(each["id"] for each in models) or "none"
        raise InvalidParams("model", model, f"{server.address.url} does not serve it; it serves {known}")
    width, height = found["defaults"].get("width"), found["defaults"].get("height")
    return round((width * height) ** 0.5) if width and height else None


def _ramp(given: Given) -> Ramp:
    first = 1.0 if given.request_rate is None else given.request_rate
    if given.request_rate_end is None:
        return Ramp.steady(first)
    return Ramp(first, given.request_rate_end, given.benchmark_duration or 0.0)


def _requests(
    given: Given, base_side: int
) -> tuple[Callable[[int], Iterator[LoadRequest]], list[float] | None, int | None]:
    """Return what makes those of a round, their due times where a file has them, and how many it has."""
    if given.input_file is None:
        workload, seed = load_workload(given.workload), given.random_seed
        return (lambda number: workload.requests(seed + number - 1, base_side)), None, None
    trace = load_trace(given.input_file)
    dues = dues_of(trace, given.input_file) if given.fixed_schedule else None
    return (lambda _: (each.asked for each in trace)), dues, len(trace)

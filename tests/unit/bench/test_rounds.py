"""Servers in turn: their ratios by round, and what each tells of itself meanwhile."""

import asyncio
from collections.abc import Iterator
from itertools import islice

import pytest
from PIL import Image

from diffuserve.bench.arrivals import Ramp
from diffuserve.bench.comparison import comparisons_of
from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble
from diffuserve.bench.reports.json_report import report_of
from diffuserve.bench.reports.timeline import batches
from diffuserve.bench.running import BenchPlan, BenchRun, Server, run_all
from diffuserve.bench.targets import Address
from diffuserve.bench.watching import ServerState, Watched, watching
from support.image_files import file_of
from support.virtual_time import in_virtual_time

DRAWN = Reply((Output(file_of(Image.linear_gradient("L").resize((16, 16)))),))


class Drawer:
    """Takes as long as it is told, and longer in each of its rounds."""

    def __init__(self, name: str, seconds: float, turns: list[str]) -> None:
        self.name, self.seconds, self.turns = name, seconds, turns

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        if self.turns[-1:] != [f"{self.name} {asked.label}"]:
            self.turns.append(f"{self.name} {asked.label}")
        await asyncio.sleep(self.seconds * int(asked.label))
        return DRAWN


def requests(number: int) -> Iterator[LoadRequest]:
    return islice(iter(lambda: LoadRequest(label=str(number), prompt="a fox"), None), 20)


@in_virtual_time
async def test_servers_take_turns_and_drift_is_in_no_ratio() -> None:
    turns: list[str] = []
    servers = [
        Server(Address("http", f"http://{name}"), Drawer(name, seconds, turns))
        for name, seconds in (("a", 0.4), ("b", 0.2))
    ]
    plan = BenchPlan(requests=requests, count=20, ramp=Ramp.steady(100.0), num_rounds=3)
    await run_all(servers, plan, run := BenchRun(), lambda *_: None)
    assert turns == ["a 1", "b 1", "a 2", "b 2", "a 3", "b 3"]
    [found] = comparisons_of(run)
    assert found.num_rounds == 3
    ratio = found.ratios["p50"]
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.ratios["images/s"].median > 1
    report = report_of(run, {}, {})
    [told] = report["comparisons"]
    assert told["ratios"]["p50"]["median"] == pytest.approx(0.5)
    client = report["results"][0]["client"]
    assert {"load_before", "load_after", "other_cores"} < set(client)
    assert client["busy"] in (True, False)


class Telling:
    """Tells how many share a step, as often as it is asked."""

    def __init__(self, fails_from: int = 1_000_000) -> None:
        self.num_asked, self._fails_from = 0, fails_from

    async def state(self, http: Http) -> ServerState:
        self.num_asked += 1
        if self.num_asked >= self._fails_from:
            raise RequestFault(Trouble.REFUSED, "403 forbidden")
        return ServerState(float(self.num_asked % 2 * 4), 7, 2)


async def watched_for(target: object, seconds: float) -> Watched:
    async with watching(target, Http("http://127.0.0.1:9", None, 1.0)) as watched:
        await asyncio.sleep(seconds)
    return watched


@in_virtual_time
async def test_a_server_is_asked_each_second_and_over_a_long_load_more_rarely() -> None:
    watched = await watched_for(Telling(), 9.5)
    assert [second for second, _ in watched.moments] == pytest.approx(list(range(10)))
    assert watched.mean_batch_size == 2.0
    assert list(batches(watched)["in a step"][:2]) == [(0.0, 4.0), (pytest.approx(1.0), 0.0)]
    target = Telling()
    long = await watched_for(target, 24 * 3600.0)
    assert len(long.moments) < 1_000
    assert target.num_asked < 10_000


@in_virtual_time
async def test_what_a_server_does_not_tell_is_said() -> None:
    assert (await watched_for(object(), 5.0)).unknown == "its API tells no batch size"
    assert (await watched_for(Telling(fails_from=1), 5.0)).unknown == "refused: 403 forbidden"
    some = await watched_for(Telling(fails_from=3), 5.0)
    assert (len(some.moments), some.unknown) == (2, None)

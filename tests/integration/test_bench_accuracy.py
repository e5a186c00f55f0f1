"""A load over real sockets on a stub that notes what it did: reported is that, within 2 % or one sample."""

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image

from diffuserve.bench.figures import Figures, Spread, figures_of
from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.playing import Due, Player
from diffuserve.bench.slo import parse_slo
from diffuserve.bench.targets import Address, TargetOptions, make_target
from support.http_request import ReceivedRequest
from support.image_files import file_of
from support.scripted_server import Reply, ScriptedServer, listening

pytestmark = pytest.mark.slow

PICTURE = base64.b64encode(file_of(Image.linear_gradient("L").resize((16, 16)))).decode()
DRAWN = {"data": [{"b64_json": PICTURE}]}
SLO = parse_slo("p95<1.2s")
RATE, COUNT = 12.0, 100
CATCHING_UP = 0.02
TRIES = 3
"""A busy machine holds up this process now and then; what it reports otherwise is what counts."""


@dataclass(frozen=True)
class Behavior:
    """How long a stub takes for its n-th request, when it stands still, and which requests it spoils."""

    latency: Callable[[int], float] = lambda _: 1.0
    stall: tuple[float, float] = (0.0, 0.0)
    fails_each: int = 0
    cuts_each: int = 0


class Stub(ScriptedServer):
    """Sends a picture late, and notes when each was sent, in seconds since the load began."""

    def __init__(self, behavior: Behavior) -> None:
        super().__init__()
        self.behavior = behavior
        self.zero = 0.0
        self.num_held = 0
        self.sent: dict[int, float] = {}
        self.spoiled: set[int] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.zero

    def reply_to(self, request: ReceivedRequest) -> Reply:
        number, behavior = request.json["seed"], self.behavior
        held = self._held(self.now())
        fails = _is_each(number, behavior.fails_each)
        is_cut = _is_each(number, behavior.cuts_each)
        if fails or is_cut:
            self.spoiled.add(number)
        content: Any = {"error": {"code": "out_of_luck"}} if fails else DRAWN
        delay = held + behavior.latency(number)
        return Numbered(
            content, status=500 if fails else 200, delay_seconds=delay, is_cut=is_cut, number=number
        )

    def _held(self, now: float) -> float:
        begins, ends = self.behavior.stall
        if not begins <= now < ends:
            return 0.0
        self.num_held += 1
        return ends - now + CATCHING_UP * self.num_held

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        is_open = await super()._send(reply, writer)
        assert isinstance(reply, Numbered)
        self.sent[reply.number] = self.now()
        return is_open


@dataclass(frozen=True)
class Numbered(Reply):
    """The reply to the request of this number."""

    number: int = 0


def _is_each(number: int, each: int) -> bool:
    return bool(each) and number % each == each - 1


async def measured(behavior: Behavior) -> Figures:
    """Return the figures of a load, which are right."""
    for last in range(1, TRIES + 1):
        figures, true = await played_on(behavior)
        if _is_right(figures, true) or last == TRIES:
            break
    _check(figures, true)
    return figures


async def played_on(behavior: Behavior) -> tuple[Figures, list[float | None]]:
    """Return the figures of a load, and the latencies that its requests really had; None of a spoiled one."""
    async with listening(Stub(behavior)) as stub:
        http = Http(stub.url, None, 60.0)
        target = make_target(Address("sglang", stub.url), TargetOptions())
        dues = [
            Due(
                LoadRequest(label="all", prompt="a fox", width=16, height=16, fields={"seed": number}),
                number / RATE,
            )
            for number in range(COUNT)
        ]
        stub.zero = asyncio.get_running_loop().time()
        with ThreadPoolExecutor(1) as checker:
            played = await Player(lambda asked: target.draw(http, asked), 60.0, checker).play_open(dues)
        await http.close()
    true = [None if number in stub.spoiled else stub.sent[number] - number / RATE for number in range(COUNT)]
    return figures_of(played.outcomes, played.seconds, slo=SLO), true


def _is_right(figures: Figures, true: list[float | None]) -> bool:
    try:
        _check(figures, true)
    except AssertionError:
        return False
    return True


def _check(figures: Figures, true: list[float | None]) -> None:
    latencies = Spread.of([latency for latency in true if latency is not None])
    assert figures.latency
    assert latencies
    assert dict(figures.latency.percentiles) == pytest.approx(dict(latencies.percentiles), rel=0.02)
    assert figures.num_failed == true.count(None)
    good = sum(SLO.is_good(latency) for latency in true)
    assert figures.good_share is not None
    assert abs(figures.good_share * COUNT - good) <= max(1, 0.02 * good)


async def test_a_constant_latency() -> None:
    figures = await measured(Behavior())
    assert figures.latency
    assert figures.latency.percentiles[50] == pytest.approx(1.0, rel=0.02)


async def test_two_latencies() -> None:
    figures = await measured(Behavior(lambda number: 2.0 if _is_each(number, 7) else 1.0))
    assert figures.latency
    assert [figures.latency.percentiles[percent] for percent in (50, 95)] == pytest.approx([1, 2], rel=0.02)


async def test_a_stall_of_three_seconds() -> None:
    figures = await measured(Behavior(lambda _: 0.5, stall=(2.0, 5.0)))
    assert figures.latency
    assert figures.latency.percentiles[99] > 3.2
    assert figures.latency.percentiles[25] < 0.8


async def test_one_failure_in_a_hundred() -> None:
    figures = await measured(Behavior(fails_each=100))
    assert figures.errors == {"overloaded: 500 out_of_luck": 1}


async def test_connections_that_close_halfway() -> None:
    figures = await measured(Behavior(cuts_each=20))
    assert sum(figures.errors.values()) == COUNT // 20
    assert all(error.startswith("connection broke") for error in figures.errors)

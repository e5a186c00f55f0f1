"""A load on a stub whose latencies are known: what is reported is what happened."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Final

import pytest
from PIL import Image

from diffuserve.bench.arrivals import Ramp, arrivals
from diffuserve.bench.figures import Figures, figures_of
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble
from diffuserve.bench.playing import Due, Player
from diffuserve.bench.slo import Slo, parse_slo
from support.image_files import file_of, png
from support.virtual_time import in_virtual_time, now

ASKED: Final = LoadRequest(label="all", prompt="a fox", width=16, height=16)
REPLY: Final = Reply((Output(file_of(Image.linear_gradient("L").resize((16, 16)))),))
SLO: Final = parse_slo("p95<0.5s")

Latency = Callable[[int], float]


class Stub:
    """A server that takes as long as `latency` says, stands still now and then, and fails as it is told."""

    def __init__(self, latency: Latency, stall: tuple[float, float] = (0, 0), fails_each: int = 0) -> None:
        self._latency, self._stall, self._fails_each = latency, stall, fails_each
        self._numbers = count(1)

    async def draw(self, asked: LoadRequest) -> Reply:
        number = next(self._numbers)
        begins, ends = self._stall
        if begins <= now() < ends:
            await asyncio.sleep(ends - now())
        await asyncio.sleep(self._latency(number))
        if self._fails_each and number % self._fails_each == 0:
            raise RequestFault(Trouble.FAILED, "out_of_luck")
        return REPLY


def dues(rate: float, seconds: float) -> Iterator[Due]:
    return (
        Due(ASKED, second) for second in islice(arrivals(Ramp.steady(rate), None, 0), int(rate * seconds))
    )


async def measured(stub: Stub, rate: float = 10, seconds: float = 100) -> Figures:
    played = await Player(stub.draw, 60).play_open(dues(rate, seconds))
    return figures_of(played.outcomes, played.seconds, slo=SLO)


def percentile(figures: Figures, percent: int) -> float:
    assert figures.latency is not None
    return figures.latency.percentiles[percent]


@in_virtual_time
async def test_constant_latencies_are_reported_as_they_are() -> None:
    figures = await measured(Stub(lambda _: 0.2))
    assert [percentile(figures, percent) for percent in (1, 50, 99)] == pytest.approx([0.2] * 3, rel=0.02)
    assert figures.request_throughput == pytest.approx(10, rel=0.02)
    assert figures.goodput == pytest.approx(10, rel=0.02)
    assert figures.is_kept


@in_virtual_time
async def test_of_two_latencies_both_are_seen() -> None:
    figures = await measured(Stub(lambda number: 1.0 if number % 10 == 0 else 0.1))
    assert [percentile(figures, percent) for percent in (50, 75, 95, 99)] == pytest.approx([0.1, 0.1, 1, 1])
    assert figures.good_share == pytest.approx(0.9, abs=0.001)
    assert not figures.is_kept


@in_virtual_time
async def test_a_stall_is_not_forgiven_by_an_open_loop() -> None:
    """Thirty of 1,000 requests are due in the three seconds in which nothing moves."""
    stalled = Stub(lambda _: 0.1, stall=(50.0, 53.0))
    figures = await measured(stalled)
    assert percentile(figures, 50) == pytest.approx(0.1, rel=0.02)
    # Of the 31 worst, evenly between 0.1 and 3.1 s, the tenth is the 99th percentile.
    assert percentile(figures, 99) == pytest.approx(2.1, abs=0.1)
    assert figures.latency
    assert figures.latency.max == pytest.approx(3.1, abs=0.1)


@in_virtual_time
async def test_a_closed_loop_would_hide_the_stall() -> None:
    player = Player(Stub(lambda _: 0.1, stall=(50.0, 53.0)).draw, 60)
    played = await player.play_closed(iter([ASKED] * 1000), 1)
    assert percentile(figures_of(played.outcomes, played.seconds), 99) == pytest.approx(0.1, rel=0.02)


@in_virtual_time
async def test_failures_are_counted_and_in_no_latency() -> None:
    figures = await measured(Stub(lambda _: 0.2, fails_each=100))
    assert (figures.num_failed, figures.errors) == (10, {"failed: out_of_luck": 10})
    assert figures.latency
    assert figures.latency.count == 990
    assert figures.good_share == pytest.approx(0.99)


@in_virtual_time
async def test_what_takes_too_long_has_failed() -> None:
    player = Player(Stub(lambda number: 100.0 if number == 1 else 0.1).draw, 5.0)
    played = await player.play_closed(iter([ASKED, ASKED]), 1)
    slow, quick = played.outcomes
    assert slow.error
    assert slow.error.trouble is Trouble.TIMEOUT
    assert slow.ended == pytest.approx(5.0)
    assert quick.latency == pytest.approx(0.1)


@in_virtual_time
async def test_an_interruption_keeps_what_has_ended() -> None:
    player = Player(Stub(lambda _: 1.0).draw, 60)
    playing = asyncio.create_task(player.play_open(dues(1, 100)))
    await asyncio.sleep(10.5)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert (len(player.played.outcomes), player.played.num_not_ended) == (9, 1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (png(32, 16), "32x16 instead of 16x16"),
        (b"<html>", "no image"),
        (png(16, 16), "one color alone"),
    ],
)
@in_virtual_time
async def test_a_wrong_picture_is_no_success(content: bytes, told: str) -> None:
    async def draw(_: LoadRequest) -> Reply:
        return Reply((Output(content),))

    played = await Player(draw, 60).play_closed(iter([ASKED]), 1)
    assert str(played.outcomes[0].error) == f"wrong output: {told}"


def test_what_failed_was_not_in_time() -> None:
    assert Slo(0.5, 1.0).is_kept([0.5, None])
    assert not Slo(0.6, 1.0).is_kept([0.5, None])

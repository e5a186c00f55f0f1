"""The loop of a fleet, with a pretended control plane and a pretended cluster manager."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import (
    DiffuserveError,
    InvalidParams,
    ServerRefused,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.domain.resources.scale import ScaleResource
from diffuserve.fleet.launcher import FleetPlacement, FleetWorker
from diffuserve.fleet.loop import FleetLoop, drained
from diffuserve.fleet.plan import FleetBounds
from support.virtual_time import in_virtual_time


@dataclass
class PretendedLauncher:
    """A cluster manager of the test's own: it has `room` for so many, and places nothing by itself."""

    room: int = 100
    held: dict[str, FleetWorker] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    num_started: int = 0
    num_drains: int = 0
    is_away: bool = False

    def workers(self) -> Sequence[FleetWorker]:
        if self.is_away:
            raise ServerUnavailable("the cluster manager is away")
        return list(self.held.values())

    def start(self, count: int) -> None:
        for _ in range(count):
            self.num_started += 1
            name = f"w{self.num_started}"
            self.held[name] = FleetWorker(name=name, placement=FleetPlacement.WAITING)

    def withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            assert self.held.pop(name).placement is FleetPlacement.WAITING

    def drain(self) -> None:
        self.num_drains += 1
        if self.is_away:
            raise ServerUnavailable("the cluster manager is away")
        self.withdraw(
            [name for name, worker in self.held.items() if worker.placement is FleetPlacement.WAITING]
        )

    def kill(self) -> None:
        self.ended += self.held
        self.held = {}

    def place(self) -> None:
        """Place what waits, as far as there is room."""
        for name, worker in self.held.items():
            num_placed = sum(each.placement is FleetPlacement.PLACED for each in self.held.values())
            if worker.placement is FleetPlacement.WAITING and num_placed < self.room:
                self.held[name] = replace(worker, placement=FleetPlacement.PLACED)

    def fail(self, name: str, cannot_start: bool = True) -> None:
        self.held[name] = FleetWorker(
            name=name, placement=FleetPlacement.FAILED, detail="no such model", cannot_start=cannot_start
        )


class PretendedPool:
    """A control plane of the test's own, which wants what it is told to want."""

    def __init__(self, workers: int | None) -> None:
        self.workers, self.num_live = workers, 0
        self.error: DiffuserveError | None = None

    async def size(self) -> ScaleResource | None:
        if self.error is not None:
            raise self.error
        if self.workers is None:
            return None
        return ScaleResource(
            pool="null",
            workers=self.workers,
            for_work=self.workers,
            for_rate=0,
            floor=0,
            predicted=0,
            num_live=self.num_live,
            num_on_demand=0,
        )


def loop_of(launcher: PretendedLauncher, pool: PretendedPool, least: int = 0, most: int = 8) -> FleetLoop:
    return FleetLoop(launcher, pool.size, FleetBounds(least, most))


async def test_the_fleet_follows_the_control_plane_and_ends_no_placed_worker() -> None:
    launcher, pool = PretendedLauncher(room=3), PretendedPool(5)
    loop = loop_of(launcher, pool)
    await loop.look()
    launcher.place()
    assert len(launcher.held) == 5
    pool.workers = 1
    await loop.look()
    assert sorted(launcher.held) == ["w1", "w2", "w3"]
    del launcher.held["w2"], launcher.held["w3"]  # they left by themselves
    await loop.look()
    assert sorted(launcher.held) == ["w1"]


@pytest.mark.parametrize(("wanted", "least", "started"), [(None, 2, 2), (0, 1, 1), (99, 0, 8)])
async def test_bounds_hold_also_for_an_unknown_model(wanted: int | None, least: int, started: int) -> None:
    launcher = PretendedLauncher()
    await loop_of(launcher, PretendedPool(wanted), least=least).look()
    assert launcher.num_started == started


async def test_why_workers_wait_is_told_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    launcher = PretendedLauncher()
    loop = loop_of(launcher, PretendedPool(2))
    caplog.set_level("INFO")
    for reason in ("Priority", "QOSMaxGRESPerUser", "QOSMaxGRESPerUser"):
        await loop.look()
        launcher.held = {name: replace(each, detail=reason) for name, each in launcher.held.items()}
    await loop.look()
    told = [record.message for record in caplog.records]
    assert [line.partition("waiting for room: ")[2] for line in told] == [
        *("0", "2 (Priority)", "2 (QOSMaxGRESPerUser)")
    ]


async def test_another_loop_goes_on_where_the_first_was_lost() -> None:
    launcher, pool = PretendedLauncher(), PretendedPool(4)
    for _ in range(3):
        await loop_of(launcher, pool).look()
        launcher.place()
    assert launcher.num_started == 4


async def test_workers_of_which_none_can_start_end_the_fleet_with_the_reason() -> None:
    launcher = PretendedLauncher(room=1)
    loop = loop_of(launcher, PretendedPool(2))
    await loop.look()
    launcher.place()
    launcher.fail("w1")
    with pytest.raises(InvalidParams, match="no such model"):
        await loop.look()
    assert launcher.held == {}


async def test_a_worker_that_fails_later_keeps_its_place_and_ends_nothing() -> None:
    launcher, pool = PretendedLauncher(), PretendedPool(2)
    loop = loop_of(launcher, pool)
    await loop.look()
    launcher.place()
    pool.num_live = 2
    await loop.look()
    pool.num_live = 0
    launcher.fail("w1")
    launcher.fail("w2")
    await loop.look()
    assert launcher.num_started == 2
    del launcher.held["w1"]  # its cluster manager has forgotten it
    await loop.look()
    assert launcher.num_started == 3


async def test_what_failed_before_the_loop_began_does_not_count() -> None:
    launcher = PretendedLauncher()
    launcher.fail("of-yesterday")
    await loop_of(launcher, PretendedPool(1)).look()
    assert launcher.num_started == 1


@pytest.mark.parametrize(
    "error", [ServerUnavailable("away"), ServerRefused("a page"), Unauthorized("the key is revoked")]
)
@in_virtual_time
async def test_an_outage_changes_nothing_and_is_outlived(error: DiffuserveError) -> None:
    launcher, pool, stop = PretendedLauncher(), PretendedPool(2), asyncio.Event()
    running = asyncio.create_task(loop_of(launcher, pool).run(stop))
    await asyncio.sleep(1.0)
    launcher.place()
    pool.workers, pool.error = 5, error
    await asyncio.sleep(60.0)
    pool.error, launcher.is_away = None, True
    await asyncio.sleep(60.0)
    assert launcher.num_started == 2
    launcher.is_away = False
    await asyncio.sleep(6.0)
    assert launcher.num_started == 5
    stop.set()
    await running


@in_virtual_time
async def test_the_end_waits_for_drains_and_then_ends_what_is_left() -> None:
    launcher = PretendedLauncher(room=2)
    launcher.start(3)
    launcher.place()
    ending = asyncio.create_task(drained(launcher, 30.0))
    await asyncio.sleep(10.0)
    assert sorted(launcher.held) == ["w1", "w2"]
    del launcher.held["w1"]
    assert await ending == 1
    assert launcher.ended == ["w2"]


@in_virtual_time
async def test_the_end_outlives_an_outage_of_the_cluster_manager_and_tells_workers_again() -> None:
    launcher = PretendedLauncher(room=1)
    launcher.start(1)
    launcher.place()
    launcher.is_away = True
    ending = asyncio.create_task(drained(launcher, 30.0))
    await asyncio.sleep(10.0)
    launcher.is_away = False
    num_drains = launcher.num_drains
    await asyncio.sleep(15.0)
    assert num_drains < launcher.num_drains < num_drains + 5
    launcher.held.clear()
    assert await ending == 0


async def test_another_is_started_for_one_that_is_being_ended_which_the_end_waits_for() -> None:
    launcher = PretendedLauncher()
    loop = loop_of(launcher, PretendedPool(2))
    await loop.look()
    launcher.held["w1"] = FleetWorker(name="w1", placement=FleetPlacement.ENDING)
    await loop.look()
    assert launcher.num_started == 3
    assert await drained(launcher, 0.0) == 3


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=20))
def test_whatever_is_wanted_the_fleet_never_exceeds_its_most(history: list[tuple[int, int]]) -> None:
    async def play() -> None:
        launcher, pool = PretendedLauncher(room=0), PretendedPool(0)
        loop = loop_of(launcher, pool, least=1)
        for wanted, room in history:
            pool.workers, launcher.room = wanted, room
            await loop.look()
            placed = [each for each in launcher.held.values() if each.placement is FleetPlacement.PLACED]
            assert len(launcher.held) == max(min(max(wanted, 1), 8), len(placed))
            launcher.place()

    asyncio.run(play())

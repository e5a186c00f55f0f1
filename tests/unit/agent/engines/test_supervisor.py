"""Engines are restarted with backoff, up to a limit, and not at all if they cannot start."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines import supervisor
from diffuserve.agent.engines.supervisor import EngineSupervisor
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.residency import Residency
from diffuserve.domain.safety import FilterInfo
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import (
    EngineReady,
    EngineRefused,
    EngineReport,
    ModelAnnounced,
    StepProgress,
)
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import FakeEngines


@dataclass
class Supervised:
    """A running supervisor, its engines, and the calls of its callbacks."""

    supervisor: EngineSupervisor
    engines: FakeEngines
    exit_code: asyncio.Task[int]
    announced: list[ModelAnnounced] = field(default_factory=list)
    job_messages: list[EngineReport] = field(default_factory=list)
    links_at_change: list[object] = field(default_factory=list)


@asynccontextmanager
async def supervising(folder: Path, is_occupied: bool = False, **values: Any) -> AsyncGenerator[Supervised]:
    engines = FakeEngines(folder)

    def judge(message: ModelAnnounced) -> str:
        announced.append(message)
        return "" if message.spec.name == "m" else "it has another model"

    announced, job_messages, links = list[ModelAnnounced](), list[EngineReport](), list[object]()
    with patch.object(supervisor, "EngineLink", engines):
        engine_supervisor = EngineSupervisor(
            WorkerConfig(server="", **values),
            partial(AsyncMock(), EngineProcessConfig(model="m")),
            on_announced=judge,
            on_job=job_messages.append,
            on_ready=lambda: None,
            on_change=lambda: links.append(engine_supervisor.link),
            is_occupied=lambda: is_occupied,
        )
        exit_code = asyncio.create_task(engine_supervisor.run())
        try:
            yield Supervised(engine_supervisor, engines, exit_code, announced, job_messages, links)
        finally:
            exit_code.cancel()
            await asyncio.wait({exit_code})


OPENNSFW = FilterInfo("opennsfw", "1")


@in_virtual_time
async def test_a_dead_engine_is_restarted_later_each_time(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        for number in range(1, 10):
            engine = await supervised.engines.next(number)
            engine.become_ready()
            engine.die(-9)
        await supervised.engines.next(10)
        started_at = supervised.engines.started_at
        pauses = [round(after - before, 1) for before, after in pairwise(started_at)]
        assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        assert supervised.supervisor.num_deaths == 9


@in_virtual_time
async def test_backoff_begins_anew_after_a_healthy_minute(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        for number in range(1, 4):
            (await supervised.engines.next(number)).become_ready()
            supervised.engines.started[-1].die(-9)
        (await supervised.engines.next(4)).become_ready()
        await asyncio.sleep(61.0)
        died_at = now()
        supervised.engines.started[-1].die(-9)
        await supervised.engines.next(5)
        assert supervised.engines.started_at[-1] - died_at == pytest.approx(0.5)


@in_virtual_time
async def test_deaths_in_a_row_are_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with supervising(tmp_path, engine_restarts=2) as supervised:
        for number in range(1, 4):
            (await supervised.engines.next(number)).become_ready()
            supervised.engines.started[-1].die(-6)
        assert await supervised.exit_code == -6
        assert "the engine died 3 times in a row; giving up" in caplog.text


@in_virtual_time
async def test_an_engine_that_exits_before_it_was_ready_is_not_restarted(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        (await supervised.engines.next()).die(3)
        assert await supervised.exit_code == 3
        assert supervised.supervisor.cannot_start(3)


@in_virtual_time
async def test_an_engine_that_exits_before_it_connects_is_not_restarted(tmp_path: Path) -> None:
    async with supervising(tmp_path, is_occupied=False) as supervised:
        supervised.engines.exits.append(127)
        assert await supervised.exit_code == 127


@in_virtual_time
async def test_an_engine_that_was_killed_while_it_loaded_is_restarted(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        (await supervised.engines.next()).die(-9)
        await supervised.engines.next(2)


@in_virtual_time
@pytest.mark.parametrize("exit_code", [1, -6])
async def test_an_engine_that_refuses_is_not_restarted_however_it_ends(
    tmp_path: Path, exit_code: int
) -> None:
    async with supervising(tmp_path) as supervised:
        engine = await supervised.engines.next()
        engine.say(EngineRefused(reason="device='cuda': none here"))
        engine.die(exit_code)
        assert await supervised.exit_code == exit_code
        assert supervised.supervisor.cannot_start(exit_code)
        assert supervised.supervisor.reason(exit_code) == "device='cuda': none here"
        assert len(supervised.engines.started) == 1


@in_virtual_time
async def test_an_engine_with_another_model_is_refused_whatever_it_says(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        engine = await supervised.engines.next()
        engine.exit_code, engine.model = -9, "another"
        engine.become_ready()
        assert await supervised.exit_code == -9
        assert supervised.supervisor.reason(-9) == "it has another model"
        assert not supervised.supervisor.was_ever_ready


@in_virtual_time
async def test_an_engine_that_is_killed_each_time_it_loads_is_given_up(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        for number in range(1, 4):
            (await supervised.engines.next(number)).die(-9)
        assert await supervised.exit_code == -9
        assert "killed by SIGKILL" in supervised.supervisor.reason(-9)


@in_virtual_time
async def test_a_refusal_ends_no_worker_whose_engine_was_ready_before(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        first = await supervised.engines.next()
        first.become_ready()
        first.die(-9)
        second = await supervised.engines.next(2)
        second.say(EngineRefused(reason="the memory of the first is not free yet"))
        second.die(1)
        await supervised.engines.next(3)


@in_virtual_time
async def test_an_exit_code_ends_no_worker_whose_engine_was_ready_before(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        (await supervised.engines.next()).become_ready()
        supervised.engines.started[0].die(1)
        await supervised.engines.next(2)


@in_virtual_time
async def test_a_stopped_engine_is_not_restarted(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        engine = await supervised.engines.next()
        engine.become_ready()
        await eventually(lambda: supervised.supervisor.is_ready)
        await supervised.supervisor.stop()
        assert await supervised.exit_code == 0
        assert engine.was_stopped
        assert len(supervised.engines.started) == 1


@in_virtual_time
async def test_a_stop_ends_the_pause_before_a_restart(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        (await supervised.engines.next()).become_ready()
        supervised.engines.started[0].die(-9)
        await eventually(lambda: supervised.supervisor.num_deaths == 1)
        await supervised.supervisor.stop()
        assert await supervised.exit_code == -9
        assert now() < 0.5


@in_virtual_time
async def test_an_engine_is_ready_between_its_message_and_its_death(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        engine = await supervised.engines.next()
        assert not supervised.supervisor.is_ready
        residency = Residency(Offload.LAYERS, device_bytes=2, host_bytes=3)
        engine.say(
            EngineReady(
                token_budget=7,
                image_filter=OPENNSFW,
                quantization=Quantization.INT8,
                residency=residency,
            )
        )
        await eventually(lambda: supervised.supervisor.is_ready)
        budget_when_ready = supervised.supervisor.token_budget
        engine.die(-9, attempts=["j1-1"])
        await eventually(lambda: not supervised.supervisor.is_ready)
        assert (budget_when_ready, supervised.supervisor.token_budget) == (7, None)
        assert supervised.supervisor.suspects == {"j1-1"}
        assert supervised.supervisor.image_filter == OPENNSFW, "of the last engine that was ready"
        assert supervised.supervisor.quantization == "int8"
        assert supervised.supervisor.residency == residency
        assert supervised.links_at_change[-1] is None, "the callback sees that there is no engine"


@in_virtual_time
async def test_messages_about_jobs_are_passed_on(tmp_path: Path) -> None:
    async with supervising(tmp_path) as supervised:
        progress = StepProgress(attempt="j1-1", phase="denoise", step=1, total=4)
        (await supervised.engines.next()).say(progress)
        await eventually(lambda: supervised.job_messages == [progress])


@in_virtual_time
async def test_an_engine_without_a_filter_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervising(tmp_path) as supervised:
        (await supervised.engines.next()).become_ready()
        await eventually(lambda: supervised.supervisor.is_ready)
        assert "NO IMAGE FILTER" in caplog.text


@in_virtual_time
async def test_an_occupied_engine_is_killed_when_it_makes_no_progress(tmp_path: Path) -> None:
    async with supervising(tmp_path, is_occupied=True, stall_seconds=60.0, silence_seconds=1e6) as supervised:
        watching = asyncio.create_task(supervised.supervisor.watch())
        engine = await supervised.engines.next()
        engine.become_ready()
        await asyncio.sleep(50.0)
        engine.say(StepProgress(attempt="j1-1", phase="denoise", step=1, total=4))
        await asyncio.sleep(50.0)
        was_killed_early = engine.was_killed
        await asyncio.sleep(15.0)
        assert (was_killed_early, engine.was_killed) == (False, True)
        watching.cancel()


@in_virtual_time
async def test_an_idle_engine_must_make_progress_only_from_its_first_job_on(tmp_path: Path) -> None:
    async with supervising(tmp_path, is_occupied=True, stall_seconds=60.0, silence_seconds=1e6) as supervised:
        watching = asyncio.create_task(supervised.supervisor.watch())
        engine = await supervised.engines.next()
        engine.become_ready()
        await asyncio.sleep(50.0)
        supervised.supervisor.got_work()
        await asyncio.sleep(50.0)
        assert not engine.was_killed
        watching.cancel()

"""A worker that takes orders gets another model while it works on, and tells how far it is."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from diffuserve.agent.engines.model_source import Obtained
from diffuserve.domain.bounds import MAX_MESSAGE
from diffuserve.domain.workers.model_orders import (
    ModelOrder,
    ModelToHave,
    OrderProgress,
    OrdersReport,
    OrderState,
)
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineLoading, EngineRefused
from support import worker_fakes as fakes
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, make_lease, running_agent

OTHER = ModelToHave(name="b", license="MIT", makes="images", num_bytes=60)


@dataclass
class FakeSource:
    """Takes the place of `ModelSource`: says what a test says; `num_left` counts downloads that were left."""

    told: asyncio.Queue[Obtained] = field(default_factory=asyncio.Queue)
    asked: list[tuple[str, int | None]] = field(default_factory=list)
    num_left: int = 0

    async def models(self) -> tuple[ModelToHave, ...]:
        return (OTHER,)

    async def obtain(self, config: EngineProcessConfig, room: int | None) -> AsyncGenerator[Obtained]:
        self.asked.append((config.model, room))
        try:
            while True:
                yield await self.told.get()
        finally:
            self.num_left += 1


@asynccontextmanager
async def taking_orders(folder: Path) -> AsyncGenerator[tuple[AgentUnderTest, FakeSource]]:
    source = FakeSource()
    with patch("diffuserve.agent.agent.ModelSource", lambda: source):
        async with running_agent(folder, model_orders=True, resident_bytes=100) as worker:
            await eventually(lambda: bool(reported(worker).models))
            yield worker, source


def reported(worker: AgentUnderTest) -> OrdersReport:
    reports = [heartbeat.report.orders for heartbeat in worker.plane.heartbeats]
    return (reports[-1] if reports else None) or OrdersReport()


async def until(worker: AgentUnderTest, state: OrderState, number: int = 1) -> OrderProgress:
    """Wait until the order of this number is in this state, and return what is reported."""

    def has_come() -> bool:
        progress = reported(worker).progress
        return progress is not None and (progress.id, progress.state) == (f"order_{number}", state)

    await eventually(has_come)
    progress = reported(worker).progress
    assert progress is not None
    return progress


def order(worker: AgentUnderTest, number: int = 1) -> None:
    worker.plane.order = ModelOrder(id=f"order_{number}", model="b")


@in_virtual_time
async def test_an_ordered_model_is_fetched_offered_and_loaded_beside_the_workers_own(tmp_path: Path) -> None:
    async with taking_orders(tmp_path) as (worker, source):
        assert reported(worker).room_bytes == 100
        order(worker)
        source.told.put_nowait(EngineLoading(phase="fetch", bytes_read=20, bytes_total=60))
        await eventually(lambda: (p := reported(worker).progress) is not None and p.bytes_read == 20)
        engine = await worker.take(make_lease("j1"))
        assert engine.attempts == ["j1-1"], "it works on meanwhile"
        source.told.put_nowait(fakes.announced("b", reference="b@1", num_bytes=30))
        await until(worker, OrderState.LOADING)
        second = await worker.engines.next(2)
        assert (second.model, source.asked) == ("b@1", [("b", 100)])
        assert [offer.spec.name for offer in worker.plane.more_offers] == ["b"]
        second.become_ready()
        await until(worker, OrderState.LOADED)
        await eventually(lambda: worker.plane.heartbeats[-1].report.resident_models == ("m", "b"))
        await eventually(lambda: set(worker.plane.claims[-1].models) == {"m", "b"})
        order(worker, 2)
        source.told.put_nowait(fakes.announced("b", reference="b@1", num_bytes=30))
        await until(worker, OrderState.LOADED, number=2)
        assert (len(worker.plane.more_offers), len(worker.engines.started)) == (1, 2), "it is there"


@in_virtual_time
async def test_an_engine_that_has_another_model_than_the_ordered_one_serves_nothing(tmp_path: Path) -> None:
    async with taking_orders(tmp_path) as (worker, source):
        order(worker)
        source.told.put_nowait(fakes.announced("b", reference="b@1", num_bytes=30))
        wrong = await worker.engines.next(2)
        wrong.model = "m"
        wrong.become_ready()
        progress = await until(worker, OrderState.FAILED)
        assert progress.reason == "its engine has 'm' in place of 'b', and must not draw for it"
        await eventually(lambda: worker.plane.heartbeats[-1].report.resident_models == ("m",))
        await eventually(lambda: set(worker.plane.claims[-1].models) == {"m"})


@in_virtual_time
async def test_a_canceled_order_stops_the_download_and_the_next_one_is_taken(tmp_path: Path) -> None:
    async with taking_orders(tmp_path) as (worker, source):
        order(worker)
        await until(worker, OrderState.FETCHING)
        worker.plane.order = None
        await until(worker, OrderState.CANCELED)
        assert source.num_left == 1
        order(worker, 2)
        await until(worker, OrderState.FETCHING, number=2)
        assert len(worker.plane.more_offers) == 0


@in_virtual_time
async def test_an_order_that_fails_says_why_in_what_a_report_may_have(tmp_path: Path) -> None:
    async with taking_orders(tmp_path) as (worker, source):
        order(worker)
        source.told.put_nowait(EngineRefused(reason="the hub\n is \x1b silent " + 2_000 * "x"))
        failed = await until(worker, OrderState.FAILED)
        assert failed.reason.startswith("the hub is  silent xxx")
        assert len(failed.reason) == MAX_MESSAGE
        order(worker, 2)
        source.told.put_nowait(fakes.announced("b", reference="b@1", num_bytes=101))
        assert "all models together may have 100" in (await until(worker, OrderState.FAILED, number=2)).reason
        await eventually(lambda: "b" in worker.plane.heartbeats[-1].report.withdrawn_models)


@in_virtual_time
async def test_a_worker_that_takes_no_orders_reports_none_and_does_nothing(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        order(worker)
        await eventually(lambda: len(worker.plane.heartbeats) > 3)
        assert worker.plane.heartbeats[-1].report.orders is None
        assert len(worker.engines.started) == 1

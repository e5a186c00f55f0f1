"""A worker of several models keeps those in memory that fit, and loads another when it holds a job for it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import Residency
from diffuserve.domain.workers.worker import Lease, ReleaseCause, WorkerState
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineRefused, JobFinished, ModelAnnounced
from support import worker_fakes as fakes
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, FakeEngine, make_lease, running_agent


def announced(*names: str, num_bytes: int = 60) -> list[ModelAnnounced]:
    return [fakes.announced(name, reference=f"{name}@1", num_bytes=num_bytes) for name in names]


def lease_of(model: str, job_id: str) -> Lease:
    return make_lease(job_id, model=model)


async def next_claim(worker: AgentUnderTest, models: Sequence[str], resident: Sequence[str]) -> None:
    """Wait until the latest claim is for these models."""
    await eventually(
        lambda: (
            bool(worker.plane.claims)
            and worker.plane.claims[-1].models == tuple(models)
            and worker.plane.claims[-1].resident_models == tuple(resident)
        )
    )


async def ready(worker: AgentUnderTest, number: int) -> FakeEngine:
    """Return the engine of this number once it has started, and is ready."""
    engine = await worker.engines.next(number)
    engine.become_ready()
    return engine


@in_virtual_time
async def test_all_models_are_offered_and_the_first_is_loaded_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=100) as worker:
        (registration,) = worker.plane.registrations
        assert [offer.spec.name for offer in registration.models] == ["a", "b"]
        assert [engine.model for engine in worker.engines.started] == ["a@1"], "the version that was offered"
        await next_claim(worker, ["a", "b"], ["a"])
        await eventually(lambda: worker.plane.heartbeats[-1].report.resident_models == ("a",))


@in_virtual_time
async def test_a_model_is_loaded_for_its_first_job_beside_others_that_fit(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=120) as worker:
        worker.plane.leases.put_nowait([lease_of("b", "j1")])
        second = await worker.engines.next(2)
        await next_claim(worker, ["a"], ["a"])
        assert worker.agent.state is WorkerState.OCCUPIED
        second.become_ready()
        await eventually(lambda: second.attempts == ["j1-1"])
        await next_claim(worker, ["a", "b"], ["a", "b"])
        assert not worker.engines.started[0].was_stopped
        second.beat(fit=CostFit((0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0)))
        await eventually(lambda: "b" in worker.plane.heartbeats[-1].fits)
        assert worker.plane.heartbeats[-1].fits["b"].load_seconds > 0


@in_virtual_time
async def test_a_model_in_use_gives_way_once_its_jobs_are_done(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=100) as worker:
        worker.plane.leases.put_nowait([lease_of("a", "j1"), lease_of("b", "j2")])
        first = worker.engines.started[0]
        await eventually(lambda: first.attempts == ["j1-1"])
        await eventually(lambda: len(worker.plane.heartbeats) > 3)
        assert len(worker.engines.started) == 1
        assert len(worker.plane.claims) == 1, "nothing more is claimed for what is to be unloaded"
        assert {held.job_id for held in worker.plane.heartbeats[-1].held} == {"j1", "j2"}
        first.say(JobFinished(attempt="j1-1"))
        second = await ready(worker, 2)
        assert first.was_stopped
        await eventually(lambda: second.attempts == ["j2-1"])
        await next_claim(worker, ["a", "b"], ["b"])


@in_virtual_time
async def test_the_least_recently_used_model_gives_way(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b", "c"), resident_bytes=120) as worker:
        for job_id, model in (("j1", "b"), ("j2", "a")):
            worker.plane.leases.put_nowait([lease_of(model, job_id)])
            if model == "b":
                await ready(worker, 2)
            engine = next(engine for engine in worker.engines.started if engine.model == f"{model}@1")
            await eventually(lambda e=engine, i=job_id: e.attempts[-1:] == [f"{i}-1"])  # type: ignore[misc]
            engine.say(JobFinished(attempt=f"{job_id}-1"))
            await eventually(lambda: not worker.agent.held)
        worker.plane.leases.put_nowait([lease_of("c", "j3")])
        await ready(worker, 3)
        assert [engine.was_stopped for engine in worker.engines.started] == [False, True, False]
        await next_claim(worker, ["a", "b", "c"], ["a", "c"])


@in_virtual_time
async def test_an_engine_that_dies_while_it_loads_loses_no_job(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=120) as worker:
        worker.plane.leases.put_nowait([lease_of("b", "j1")])
        (await worker.engines.next(2)).die(-9)
        await eventually(lambda: bool(worker.plane.releases))
        ((job_id, release),) = worker.plane.releases
        assert (job_id, release.cause) == ("j1", ReleaseCause.BYSTANDER)
        await ready(worker, 3)
        await next_claim(worker, ["a", "b"], ["a", "b"])


@in_virtual_time
async def test_a_model_that_cannot_be_loaded_is_withdrawn_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=100) as worker:
        worker.plane.leases.put_nowait([lease_of("b", "j1")])
        second = await worker.engines.next(2)
        second.say(EngineRefused(reason="a truncated\nfile"))
        second.die(1)
        await eventually(lambda: bool(worker.plane.releases))
        await ready(worker, 3)
        await next_claim(worker, ["a"], ["a"])
        await eventually(lambda: worker.plane.heartbeats[-1].report.state is WorkerState.READY)
        assert worker.plane.heartbeats[-1].report.withdrawn_models == {"b": "a truncated file"}
        worker.plane.leases.put_nowait([lease_of("b", "j2")])
        await eventually(lambda: len(worker.plane.releases) == 2)


@in_virtual_time
async def test_a_model_that_is_too_large_alone_is_withdrawn_before_anything_gives_way(tmp_path: Path) -> None:
    models = [*announced("a"), *announced("b", num_bytes=101)]
    async with running_agent(tmp_path, several=models, resident_bytes=100) as worker:
        worker.plane.leases.put_nowait([lease_of("b", "j1")])
        await eventually(lambda: bool(worker.plane.releases))
        await next_claim(worker, ["a"], ["a"])
        await eventually(lambda: bool(worker.plane.heartbeats[-1].report.withdrawn_models))
        assert "--resident-bytes" in worker.plane.heartbeats[-1].report.withdrawn_models["b"]
        assert not worker.engines.started[0].was_stopped


@in_virtual_time
async def test_what_nobody_can_load_or_is_called_alike_is_not_offered(tmp_path: Path) -> None:
    found: list[ModelAnnounced | EngineRefused] = [
        EngineRefused(reason="no such model"),
        *announced("a", "a"),
    ]
    async with running_agent(tmp_path, several=found) as worker:
        (registration,) = worker.plane.registrations
        assert [offer.spec.name for offer in registration.models] == ["a"]
        await next_claim(worker, ["a"], ["a"])


@in_virtual_time
async def test_a_worker_of_which_no_model_is_left_ends(tmp_path: Path) -> None:
    refused = [EngineRefused(reason="no such model"), EngineRefused(reason="nor this")]
    async with running_agent(tmp_path, is_ready=False, several=refused) as worker:
        assert await worker.exit_code == 2


@in_virtual_time
async def test_a_job_that_waits_for_its_model_is_canceled_and_handed_back_as_others(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=120) as worker:
        worker.plane.leases.put_nowait([lease_of("b", "j1"), lease_of("b", "j2")])
        await worker.engines.next(2)
        worker.agent._jobs.cancel("j1")
        await eventually(lambda: bool(worker.plane.failures))
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert [job_id for job_id, _ in worker.plane.releases] == ["j2"]


@in_virtual_time
async def test_a_job_waits_for_its_model_for_minutes_and_no_longer(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=100) as worker:
        worker.plane.leases.put_nowait([lease_of("a", "j1"), lease_of("b", "j2")])
        await eventually(lambda: len(worker.agent.held) == 2)
        await asyncio.sleep(299.0)
        assert set(worker.agent.held) == {"j1", "j2"}
        await asyncio.sleep(2.0)
        assert [job_id for job_id, _ in worker.plane.releases] == ["j2"]
        assert set(worker.agent.held) == {"j1"}
        await next_claim(worker, ["a", "b"], ["a"])


@in_virtual_time
async def test_metrics_tell_what_is_in_memory_and_what_loads_take(tmp_path: Path) -> None:
    async with running_agent(tmp_path, several=announced("a", "b"), resident_bytes=100) as worker:
        worker.plane.leases.put_nowait([lease_of("b", "j1")])
        await ready(worker, 2)
        await next_claim(worker, ["a", "b"], ["b"])
        value = worker.agent.metrics.registry.get_sample_value
        for name, expected in (("resident", (0.0, 1.0)), ("loads", (1.0, 1.0))):
            found = tuple(value(f"diffusion_worker_model_{name}", {"model": model}) for model in "ab")
            assert found == expected
        assert value("diffusion_worker_model_load_seconds", {"model": "b"})
        assert value("diffusion_worker_engine_restarts_total") == 0.0, "an unloaded engine did not die"


@in_virtual_time
async def test_weights_that_wait_on_the_host_leave_their_room_to_other_models(tmp_path: Path) -> None:
    models = announced("a", "b", num_bytes=600)
    offloaded = EngineProcessConfig(offload=Offload.LAYERS)
    layers = Residency(Offload.LAYERS, device_bytes=50, host_bytes=600)
    async with running_agent(
        tmp_path, is_ready=False, several=models, resident_bytes=100, engine_process=offloaded
    ) as worker:
        for number, model in ((1, "a"), (2, "b"), (3, "a")):
            worker.plane.leases.put_nowait([lease_of(model, f"j{number}")])
            engine = await worker.engines.next(number)
            engine.become_ready(residency=layers)
            await eventually(lambda e=engine, n=number: e.attempts == [f"j{n}-1"])  # type: ignore[misc]
            engine.say(JobFinished(attempt=f"j{number}-1"))
            await eventually(lambda: not worker.agent.held)
        stopped = [engine.was_stopped for engine in worker.engines.started]
        assert stopped == [True, False, False], "the second was loaded before its size was known"

"""The agent with a real engine process and a real server; most engines generate nothing."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sqlalchemy as sa

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.engines import supervisor
from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.agent.loops import control as control_loop
from diffuserve.agent.loops import engine as engine_loop
from diffuserve.backoff import Backoff
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.workers.worker import ControlCommands, WorkerState
from diffuserve.events.base import job_topic
from diffuserve.jobs.database import schema
from diffuserve.media.image_file import read_parameters
from diffuserve.protocol.messages import JobFailed
from diffuserve.telemetry.memory import Memory
from support.plane import LEASE_SECONDS, NULL_ENGINE, Plane, until
from support.waiting import HANG_SECONDS, eventually
from support.worker_fakes import engine_of

Start = Callable[..., WorkerAgent]


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines that died start again at once."""
    monkeypatch.setattr(supervisor, "_BACKOFF", Backoff(first_seconds=0.05, longest_seconds=0.5))


async def engine_pid(agent: WorkerAgent) -> int:
    await eventually(lambda: agent._models.is_ready)
    link = engine_of(agent).link
    assert link is not None
    return link.pid


async def test_a_job_comes_out_as_a_file(plane: Plane, start: Start) -> None:
    start("--files", "1")
    job = await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    assert job.result is not None
    (artifact,) = job.result.artifacts
    assert await plane.artifacts.size(f"{job.id}/{job.lease_token}/{artifact.name}") == artifact.size_bytes


async def test_many_jobs_overlap(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "60")
    jobs = [await plane.submit() for _ in range(20)]
    await eventually(lambda: len(agent.held) == len(jobs))
    for job in jobs:
        await until(plane, job, JobStatus.RUNNING)


async def test_a_job_that_fails_does_not_end_the_worker(plane: Plane, start: Start) -> None:
    start()
    bad, good = await plane.submit("bad"), await plane.submit()
    failed = await until(plane, bad, JobStatus.FAILED)
    assert failed.error is not None
    assert failed.error.code == "bad"
    await until(plane, good, JobStatus.SUCCEEDED)


async def test_a_killed_engine_starts_again_and_its_jobs_go_on(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "0.5")
    pid = await engine_pid(agent)
    job = await plane.submit()
    await until(plane, job, JobStatus.RUNNING)
    os.kill(pid, signal.SIGKILL)
    done = await until(plane, job, JobStatus.SUCCEEDED)
    assert done.attempt >= 2
    causes = [event.data.get("cause") for event in await plane.store.jobs.events_after(job.id)]
    assert "worker_lost" in causes
    assert await engine_pid(agent) != pid


async def test_without_restarts_the_agent_ends_with_its_engine(
    plane: Plane, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_loop, "_REPORT_SECONDS", HANG_SECONDS)
    agent = start("--seconds", "60", engine_restarts=0)
    pid = await engine_pid(agent)
    job = await plane.submit()
    await eventually(lambda: job.id in agent.held)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(HANG_SECONDS):
        assert await asyncio.shield(agent.over) == 1  # type: ignore[attr-defined]
    assert await plane.status(job) is JobStatus.QUEUED, "it was handed back with the last breath"


async def test_the_engine_dies_with_its_agent(plane: Plane, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diffuserve", "worker", "--server", plane.url]
    engine = f"{' '.join(NULL_ENGINE)} --seconds 60"
    with subprocess.Popen([*command, "--engine-command", engine], stderr=subprocess.DEVNULL) as agent:
        process = psutil.Process(agent.pid)
        await eventually(lambda: any("null_engine" in " ".join(c.cmdline()) for c in process.children()))
        (child,) = process.children()
        agent.kill()
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_a_frozen_engine_dies_with_its_agent_too(plane: Plane, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diffuserve", "worker", "--server", plane.url]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
        process = psutil.Process(agent.pid)
        await eventually(lambda: any("engine_process" in " ".join(c.cmdline()) for c in process.children()))
        (child,) = process.children()
        await eventually(lambda: len(child.threads()) > 1)  # it has connected
        child.suspend()
        agent.kill()
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("how", ["frozen", "hanging"])
async def test_a_stuck_engine_is_killed_and_its_job_goes_back(plane: Plane, start: Start, how: str) -> None:
    limits = {"silence_seconds": 3.0} if how == "frozen" else {"stall_seconds": 0.5}
    agent = start("--seconds", "0.8", **limits)
    pid = await engine_pid(agent)
    job = await plane.submit("hang" if how == "hanging" else "a star")
    await until(plane, job, JobStatus.RUNNING)
    if how == "frozen":
        os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: agent.state is WorkerState.STALLED)
    await eventually(lambda: not psutil.pid_exists(pid) or engine_of(agent).link is None)
    if how == "frozen":
        await until(plane, job, JobStatus.SUCCEEDED)
    else:
        failed = await until(plane, job, JobStatus.FAILED)
        assert failed.error is not None
        assert failed.error.code == "worker_lost", "it hangs every engine"


async def test_a_cancel_reaches_a_running_job_at_once(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "60", heartbeat_seconds=1_000.0)  # so no heartbeat tells it
    job = await plane.submit()
    await until(plane, job, JobStatus.RUNNING)
    await eventually(lambda: bool(agent.held))
    await plane.store.jobs.cancel(job.id)
    await until(plane, job, JobStatus.CANCELED)
    await eventually(lambda: not agent.held)


async def test_a_lost_lease_aborts_its_job_and_no_outcome_is_reported(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "60")
    job = await plane.submit(timeout=1_000.0)
    await eventually(lambda: bool(agent.held))
    await plane.run_over_time(job)
    await until(plane, job, JobStatus.FAILED)
    await eventually(lambda: not agent.held)
    await until(plane, await plane.submit("bad"), JobStatus.FAILED)


async def test_a_late_message_about_a_lost_lease_does_not_end_the_next(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "60")
    job = await plane.submit()
    await until(plane, job, JobStatus.RUNNING)
    await eventually(lambda: bool(agent.held))
    await plane.expire(job)
    await eventually(lambda: job.id in agent.held and agent.held[job.id].lease.lease_token == 2)
    agent._jobs.handle(JobFailed(attempt=f"{job.id}-1", code="aborted", message="of the first lease"))
    await plane.store.jobs.cancel(job.id)
    assert (await until(plane, job, JobStatus.CANCELED)).attempt == 2, "it had not failed before"


async def test_a_lost_job_leaves_no_files(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "60", "--files", "1")
    job = await plane.submit(timeout=1_000.0)
    await eventually(lambda: bool(agent.held))
    folder = agent.held[job.id].folder
    await plane.run_over_time(job)
    await until(plane, job, JobStatus.FAILED)
    await eventually(lambda: not folder.exists())


async def test_a_cancel_of_a_job_that_is_not_held_is_not_polled_without_a_pause(
    plane: Plane, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, asked = start("--seconds", "60"), 0
    job = await plane.submit()
    await eventually(lambda: bool(agent.held))
    agent._state.held.clear()  # as after an end that could not be reported
    control = agent._client.control

    async def counted(*arguments: Any) -> ControlCommands:
        nonlocal asked
        asked += 1
        return await control(*arguments)

    monkeypatch.setattr(agent._client, "control", counted)
    begin = time.monotonic()
    await plane.store.jobs.cancel(job.id)
    await eventually(lambda: asked >= 3)
    await plane.expire(job)
    await until(plane, job, JobStatus.CANCELED)
    assert asked <= (time.monotonic() - begin) / control_loop._REPEAT_SECONDS + 2, (
        "there is a pause between two"
    )


async def test_a_full_engine_gets_no_more_jobs(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "60")
    jobs = [await plane.submit(step_tokens=8192) for _ in range(4)]
    await eventually(lambda: len(agent.held) >= 2)  # one in the running step, and one for the next step
    await plane.store.jobs.cancel(jobs[0].id)  # makes room for one more
    await until(plane, jobs[2], JobStatus.RUNNING)
    assert await plane.status(jobs[3]) is JobStatus.QUEUED


async def test_an_engine_killed_while_it_loads_is_started_again(plane: Plane, start: Start) -> None:
    agent = start("--load-seconds", "1.0")
    await eventually(lambda: bool(agent._models.pids))
    os.kill(agent._models.pids[0], signal.SIGKILL)
    await until(plane, await plane.submit(), JobStatus.SUCCEEDED)


async def test_an_engine_that_is_still_starting_dies_with_its_agent(plane: Plane) -> None:
    command = [sys.executable, "-m", "diffuserve", "worker", "--server", plane.url]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
        process = psutil.Process(agent.pid)
        await eventually(lambda: any("engine_process" in " ".join(c.cmdline()) for c in process.children()))
        (child,) = process.children()
        agent.kill()
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_a_worker_short_of_memory_gets_no_job_until_it_has_some(plane: Plane, start: Start) -> None:
    agent = start(memory=Memory(95, 100))
    job = await plane.submit()
    await engine_pid(agent)
    await asyncio.sleep(0.5)
    assert await plane.status(job) is JobStatus.QUEUED
    agent._gate._read_memory = lambda _pids: Memory(90, 100)
    await until(plane, job, JobStatus.SUCCEEDED)


async def test_a_worker_that_the_control_plane_forgot_registers_again(plane: Plane, start: Start) -> None:
    agent = start()
    await engine_pid(agent)
    await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    from diffuserve.jobs.workers.registry_bounds import forget_workers

    await plane.store.database.write(lambda transaction: forget_workers(transaction, -1.0))
    await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    assert len(await plane.store.operations.workers()) == 1


async def test_a_job_outlives_the_control_planes_absence(plane: Plane, start: Start) -> None:
    agent = start("--seconds", "0.5", "--files", "1")
    job = await plane.submit()
    await until(plane, job, JobStatus.RUNNING)
    await eventually(lambda: bool(agent.held))
    await plane.vanish()
    await eventually(lambda: not agent.held[job.id].is_in_engine)  # drawn, and nobody takes it
    await asyncio.sleep(0.5)
    await plane.listen()
    done = await until(plane, job, JobStatus.SUCCEEDED)
    assert done.attempt == 1


async def test_a_model_that_cannot_be_loaded_ends_the_worker(plane: Plane, start: Start) -> None:
    agent = start(engine_command=(sys.executable, "-c", "raise SystemExit(3)"))
    async with asyncio.timeout(HANG_SECONDS):
        assert await asyncio.shield(agent.over) == 2  # type: ignore[attr-defined]


async def test_the_real_engine_makes_previews_an_image_and_a_thumbnail(plane: Plane, start: Start) -> None:
    agent = start(engine_command=(), model="tiny-flux", device="cpu")
    wanted = {"prompt": "a large red circle", "seed": 7, "num_inference_steps": 4}
    job = await plane.submit(model="tiny-flux", input=wanted, num_previews=2, output_format="webp")
    with plane.bus.subscribe(job_topic(job.id)) as news:
        job = await until(plane, job, JobStatus.SUCCEEDED)
        events = []
        while (message := await news.get(0.1)) is not None:
            events.append(message)
    assert [event["index"] for event in events if event["type"] == "preview"] == [0, 1]
    assert job.result is not None
    assert [(artifact.name, artifact.role) for artifact in job.result.artifacts] == [
        ("0.webp", "image"),
        ("thumbnail.webp", "thumbnail"),
    ]
    path = plane.folder / "artifacts" / job.id / str(job.lease_token) / "0.webp"
    assert read_parameters(path)["seed"] == 7
    mapped = {file.path for file in psutil.Process(await engine_pid(agent)).memory_maps()}
    assert any("/torch/" in path for path in mapped)
    assert not any("/av.libs/" in path for path in mapped), "images need no encoder of clips"
    assert job.actual_seconds
    assert (await plane.store.operations.models())["tiny-flux"].spec.name == "tiny-flux"


async def test_a_workers_metrics_have_no_label_per_job(plane: Plane, start: Start) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start(metrics_port=port)
    job = await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    assert 'diffusion_worker_jobs_total{status="succeeded"} 1.0' in text
    assert job.id not in text


async def test_a_heartbeat_that_is_too_slow_for_the_lease_is_refused_at_start(
    plane: Plane, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    agent = start(heartbeat_seconds=LEASE_SECONDS / 2)
    async with asyncio.timeout(HANG_SECONDS):
        assert await asyncio.shield(agent.over) == 2  # type: ignore[attr-defined]
    assert "must be at most a third of lease_seconds" in caplog.text


async def test_only_jobs_that_an_engine_was_working_on_are_suspects(plane: Plane, start: Start) -> None:
    """A job that an engine was working on runs alone from then on; the others lose no attempt."""
    start("--seconds", "0.5", engine_restarts=None)
    waiting = await plane.submit()
    await until(plane, waiting, JobStatus.RUNNING)
    poison = await plane.submit("crash")
    await until(plane, poison, JobStatus.FAILED)
    await until(plane, waiting, JobStatus.SUCCEEDED)
    jobs = schema.jobs
    rows = await plane.store.database.rows(sa.select(jobs.c.id, jobs.c.is_suspect))
    assert {row.id: row.is_suspect for row in rows} == {waiting.id: False, poison.id: True}


async def test_replicas_are_workers_of_their_own_that_end_together(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7f")
    options = ("--replicas", "2", "--device", "cuda", "--name", "pair", "--server", plane.url)
    engine = ("--engine-command", " ".join(NULL_ENGINE))
    both = subprocess.Popen((sys.executable, "-m", "diffuserve", "worker", *options, *engine))
    try:

        async def are_ready() -> bool:
            ready = [
                worker.name
                for worker in await plane.store.operations.workers()
                if worker.state is WorkerState.READY
            ]
            return sorted(ready) == ["pair-0", "pair-1"]

        await eventually(are_ready)
        started = psutil.Process(both.pid).children(recursive=True)
        engines = [process for process in started if set(NULL_ENGINE) < set(process.cmdline())]
        seen = sorted(process.environ()["CUDA_VISIBLE_DEVICES"] for process in engines)
        assert seen == ["3", "GPU-7f"], "each engine sees a GPU of its own"
        job = await plane.submit()
        await until(plane, job, JobStatus.SUCCEEDED)
    finally:  # as some shells do it: Ctrl-C reaches every process
        for process in (psutil.Process(both.pid), *psutil.Process(both.pid).children(recursive=True)):
            process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(both.wait, HANG_SECONDS)
    assert code == 0


async def test_an_engine_that_cannot_use_its_device_says_so_and_ends_the_worker_without_a_crash(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    agent: Any = start(engine_command=(), device="cuda:99")
    assert await agent.over == CANNOT_START
    assert "cuda:99" in agent._models.all[0].refusal
    assert engine_of(agent).num_deaths == 0, "it was not started again"
    assert "terminate called" not in capfd.readouterr().err

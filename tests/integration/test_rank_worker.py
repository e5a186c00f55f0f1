"""A worker of several ranks, started by its agent through the launcher, whose ranks are killed and frozen."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.jobs.database import schema
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.nodes import Nodes
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.plane import Plane, until
from support.waiting import HANG_SECONDS, eventually
from support.worker_fakes import engine_of

Start = Callable[..., WorkerAgent]

_COLLECTIVE_SECONDS = EngineProcessConfig().collective_seconds


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_flux_checkpoint(tmp_path_factory.mktemp("model") / "flux"))


def ranks_of(agent: WorkerAgent) -> list[psutil.Process]:
    """The processes of its group, by rank."""
    started = [child for pid in agent._models.pids for child in psutil.Process(pid).children()]
    return sorted(
        (child for child in started if "RANK" in child.environ()),
        key=lambda child: int(child.environ()["RANK"]),
    )


async def ready(agent: WorkerAgent) -> None:
    await eventually(lambda: agent._models.is_ready)


async def submit(plane: Plane, steps: int = 2) -> Job:
    shape = {"width": 256, "height": 256, "num_inference_steps": steps, "max_sequence_length": 16}
    return await plane.submit(model="flux", input={"prompt": "a red circle", "seed": 1} | shape)


async def hurt(agent: WorkerAgent, number: signal.Signals, rank: int = 1) -> float:
    """Seconds until the agent knows that the group is gone, and all of it is."""
    group = ranks_of(agent)
    launcher = psutil.Process(engine_of(agent).link.pid)  # type: ignore[union-attr]
    deaths, started = engine_of(agent).num_deaths, time.monotonic()
    group[rank].send_signal(number)
    await eventually(lambda: engine_of(agent).num_deaths > deaths)
    await eventually(lambda: not any(_lives(process) for process in (launcher, *group)))
    return time.monotonic() - started


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def lose_nothing(plane: Plane, agent: WorkerAgent, number: signal.Signals) -> None:
    """Hurt a rank in the middle of a job, which the next group then finishes."""
    long = await submit(plane, steps=60)
    # A group that dies before it has begun with the job leaves it without suspicion.
    await eventually(lambda: long.id in agent.held and agent.held[long.id].step > 0)
    assert await hurt(agent, number) < _COLLECTIVE_SECONDS, "noticed before a collective gave up"
    await ready(agent)
    done = await until(plane, long, JobStatus.SUCCEEDED)
    assert done.attempt == 2
    jobs = schema.jobs
    [row] = await plane.store.database.rows(sa.select(jobs.c.is_suspect).where(jobs.c.id == long.id))
    assert row.is_suspect, "the group died while it was at this job"


@pytest.mark.alone
async def test_ranks_generate_and_a_broken_group_is_restarted(
    plane: Plane, start: Start, checkpoint: str
) -> None:
    agent = start(engine_command=(), model=checkpoint, device="cpu", gpus=2)
    await ready(agent)
    assert len(ranks_of(agent)) == 2
    await until(plane, await submit(plane), JobStatus.SUCCEEDED)
    await lose_nothing(plane, agent, signal.SIGKILL)
    agent.drain()
    await asyncio.wait_for(agent.over, HANG_SECONDS)  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_twenty_faults_lose_no_job_and_hang_nowhere(
    plane: Plane, start: Start, checkpoint: str
) -> None:
    """Killed and frozen in turn, any rank, in the middle of jobs."""
    agent = start(engine_command=(), model=checkpoint, device="cpu", gpus=2)
    await ready(agent)
    noticed = []
    for number in range(20):
        job = await submit(plane, steps=20)
        await until(plane, job, JobStatus.RUNNING)
        fault = (signal.SIGKILL, signal.SIGSTOP)[number % 2]
        noticed.append(await hurt(agent, fault, rank=number // 2 % 2))
        await ready(agent)
        await until(plane, job, JobStatus.SUCCEEDED)
    print(f"noticed after {max(noticed):.1f} s at most; no job lost, no hang")
    assert max(noticed) < _COLLECTIVE_SECONDS, "noticed before a collective gave up"


@pytest.mark.slow
async def test_two_nodes_are_one_worker(plane: Plane, start: Start, checkpoint: str, tmp_path: Path) -> None:
    """Two launchers run on this machine; a rank of the second dies, both start again, and both drain."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shape = ("--model", checkpoint, "--device", "cpu", "--nnodes", "2", "--node-rank", "1")
    (secret := tmp_path / "secret").write_text("s" * 64)
    secret.chmod(0o600)
    place = ("--node-endpoint", f"127.0.0.1:{port}", "--node-secret-file", str(secret))
    times = ("--collective-seconds", "20", "--drain-seconds", str(HANG_SECONDS))
    command = (sys.executable, "-m", "diffuserve", "worker", *shape, *place, *times)
    second = subprocess.Popen(command)
    try:
        nodes = Nodes(2, 0, "127.0.0.1", port, secret)
        agent = start(
            engine_command=(),
            model=checkpoint,
            device="cpu",
            nodes=nodes,
            collective_seconds=20.0,
            drain_seconds=HANG_SECONDS,
        )
        await ready(agent)
        await until(plane, await submit(plane), JobStatus.SUCCEEDED)
        deaths = engine_of(agent).num_deaths
        [far] = [
            child for child in psutil.Process(second.pid).children(recursive=True) if _rank(child) == "1"
        ]
        far.kill()
        await eventually(lambda: engine_of(agent).num_deaths > deaths)
        await ready(agent)
        last = await submit(plane, steps=60)
        await eventually(lambda: last.id in agent.held and agent.held[last.id].step > 0)
        second.terminate()
        agent.drain()
        assert (await until(plane, last, JobStatus.SUCCEEDED)).attempt == 1
        assert await asyncio.to_thread(second.wait, HANG_SECONDS) == 0
    finally:
        second.kill()
        second.wait()


def _rank(process: psutil.Process) -> str | None:
    rank: str | None = process.environ().get("RANK")
    return rank

"""A control plane and real agents."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.spot.machine import ON_DEMAND, Machine
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.jobs.tasks.preemptor import Preemptor
from diffuserve.jobs.tasks.reaper import Reaper
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.storage.bucket import BucketArtifactStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.telemetry.memory import Memory
from diffuserve.telemetry.tracing import OFF, Tracer
from support.plane import NULL_ENGINE, Plane
from support.waiting import HANG_SECONDS


@pytest.fixture(autouse=True, scope="module")
def on_one_thread(one_thread: None) -> None:
    """Run each operation on one thread, and engines that are not told otherwise."""


@pytest.fixture
def artifacts(tmp_path: Path) -> LocalArtifactStore:
    return LocalArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def tracer_of() -> Callable[[str], Tracer]:
    """The tracer of a service, by its name."""
    return lambda _service: OFF


@pytest.fixture
async def plane(
    tmp_path: Path,
    artifacts: LocalArtifactStore | BucketArtifactStore,
    tracer_of: Callable[[str], Tracer],
) -> AsyncGenerator[Plane]:
    plane = Plane(tmp_path, artifacts, tracer_of("diffuserve-api"))
    await plane.store.open()
    await plane.listen()
    reaper = asyncio.create_task(Reaper(plane.store.housekeeping, plane.artifacts).run())
    preemptor = asyncio.create_task(Preemptor(plane.store.housekeeping, plane.bus).run())
    yield plane
    reaper.cancel()
    preemptor.cancel()
    await plane.vanish()
    await plane.store.close()


@pytest.fixture
async def start(
    plane: Plane, tracer_of: Callable[[str], Tracer]
) -> AsyncGenerator[Callable[..., WorkerAgent]]:
    """Starts agents; each is drained at the end."""
    running: list[tuple[WorkerAgent, asyncio.Task[int]]] = []

    def start(
        *options: str, memory: Memory | None = None, machine: Machine = ON_DEMAND, **values: Any
    ) -> WorkerAgent:
        values.setdefault("engine_command", (*NULL_ENGINE, *options))
        values.setdefault("drain_seconds", 0.0)
        engine_names = {declared.name for declared in fields(EngineProcessConfig)} & values.keys()
        engine_process = EngineProcessConfig(**{name: values.pop(name) for name in engine_names})
        config = WorkerConfig(server=plane.url, engine_process=engine_process, **values)
        client = LeaseClient(HttpTransport(plane.url, patience_seconds=60.0, waits_for_storage=True))
        tracer = tracer_of("diffuserve-worker")
        fetch = AdapterStore(config.engine_process.stored).fetch
        agent = WorkerAgent(config, client, lambda _pids: memory or Memory(0, 1), machine, tracer, fetch)
        agent.over = asyncio.create_task(agent.run())  # type: ignore[attr-defined]
        running.append((agent, agent.over))  # type: ignore[attr-defined]
        return agent

    yield start
    for agent, task in running:
        agent.drain()
        await asyncio.wait({task}, timeout=HANG_SECONDS)

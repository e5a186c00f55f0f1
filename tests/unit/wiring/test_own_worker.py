"""The worker that a server runs itself: its name, its predecessor's jobs, and when it is ready."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.workers.worker import ModelOffer, Registration, WorkerReport, WorkerState
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from diffuserve.wiring.own_worker import name_of, release_jobs_of, wait_until_ready
from support.store_driver import SPEC, claim_one, new_job


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    async with open_store(Settings(data_dir=tmp_path)) as store:
        yield store


async def register(store: JobStore, name: str, state: WorkerState = WorkerState.READY) -> str:
    offers = (ModelOffer(spec=SPEC),)
    registration = Registration(models=offers, report=WorkerReport(state=state), name=name)
    return await store.leases.register(registration)


def test_workers_of_other_data_folders_have_other_names(tmp_path: Path) -> None:
    names = {name_of(Settings(data_dir=tmp_path / folder)) for folder in ("a", "b", "b/../a")}
    assert len(names) == 2


async def test_jobs_of_the_last_worker_return_to_the_queue(store: JobStore) -> None:
    dead, other = await register(store, "serve:here"), await register(store, "elsewhere")
    first, second = [await store.jobs.submit(new_job()) for _ in range(2)]
    await claim_one(store, dead)
    await claim_one(store, other)
    await release_jobs_of(store, "serve:here")
    statuses = [(await store.jobs.get(job.id)).status for job in (first, second)]
    assert sorted(statuses) == [JobStatus.QUEUED, JobStatus.RUNNING]
    [requeued] = [event for event in await store.jobs.events_after(first.id) if event.type == "requeued"]
    assert requeued.data["cause"] == "server_restarted"


@pytest.mark.parametrize("state", [WorkerState.READY, WorkerState.OCCUPIED])
async def test_waiting_ends_with_a_new_worker_that_is_ready(store: JobStore, state: WorkerState) -> None:
    known = await register(store, "known")
    running: asyncio.Task[int] = asyncio.create_task(cast(Any, asyncio.Event().wait()))
    waiting = asyncio.create_task(wait_until_ready(running, store, {known}))
    await register(store, "loading", WorkerState.INITIALIZING)
    await asyncio.sleep(0)
    assert not waiting.done()
    await register(store, "new", state)
    await waiting
    running.cancel()


async def test_waiting_fails_if_the_worker_cannot_start(store: JobStore) -> None:
    ended: asyncio.Task[int] = asyncio.create_task(asyncio.sleep(0, 2))
    with pytest.raises(ServerUnavailable, match="could not start; see its log"):
        await wait_until_ready(ended, store, set())


async def test_waiting_has_a_timeout(store: JobStore) -> None:
    running: asyncio.Task[int] = asyncio.create_task(cast(Any, asyncio.Event().wait()))
    with pytest.raises(ServerUnavailable, match="no worker was ready after 0 s"):
        await wait_until_ready(running, store, set(), timeout=0.0)
    running.cancel()

"""Work at batches from files: behind the filter, each tenant's its own, and continued when a process dies."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.openai import batch_runner, batch_work
from diffuserve.api.openai.batch_runner import FileBatchRunner
from diffuserve.api.openai.batch_work import BatchWorkParts
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import PASSES, Action, FilterInfo, Finding, Verdict
from diffuserve.domain.tenant import Plan, PlanOverrides, Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from support.file_batches import GENERATIONS, create, line, lines_of, until, working
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS


@pytest.fixture
def store_config() -> StoreConfig:
    plan = Plan(name="wide", max_running=10_000, max_queued=60_000)
    return StoreConfig(plans={"wide": plan}, default_plan="wide")


@pytest.fixture
def policy() -> "Policy":
    return Policy()


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, policy: "Policy") -> FastAPI:
    return create_app(store, artifacts, bus, ApiConfig(poll_seconds=0.05), prompts=PromptProcessor(policy))


@pytest.fixture
async def runner(app: FastAPI) -> AsyncGenerator[None]:
    async with working(app):
        yield


class Policy:
    """Blocks prompts with `forbidden`, and is down as long as a test says so."""

    info = FilterInfo("policy", "1")
    is_down = False

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        if self.is_down:
            raise ModerationUnavailable("the filter is down")
        is_blocked = "forbidden" in prompt
        return Verdict((Finding("rude", Action.BLOCK, "term"),)) if is_blocked else PASSES

    async def check_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        return [await self.check(prompt, tenant_id) for prompt in prompts]

    async def close(self) -> None: ...


async def test_blocked_prompts_are_refused_lines_and_a_filter_that_is_down_delays_the_batch(
    client: AsyncOpenAI,
    busy_worker: HandWorker,
    runner: None,
    store: JobStore,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_runner, "_MIN_PAUSE", 0.05)
    policy.is_down = True
    batch = await create(client, [line("fine"), line("rude", prompt="a forbidden cat")])
    batch = await until(client, batch, "in_progress")
    await asyncio.sleep(0.2)
    assert (await client.batches.retrieve(batch.id)).status == "in_progress"
    policy.is_down = False
    done = await until(client, batch, "completed")
    [fine] = await lines_of(client, done.output_file_id)
    [rude] = await lines_of(client, done.error_file_id)
    assert (fine["custom_id"], rude["custom_id"]) == ("fine", "rude")
    assert rude["response"]["body"]["error"]["code"] == "moderation_blocked"
    assert [entry.category for entry in await store.audit.newest()] == ["rude"]


async def test_a_batch_waits_for_room_in_the_queue_or_is_too_large_for_it(
    server: str, store: JobStore, runner: None
) -> None:
    _, key = await store.keys.create(Role.TENANT, tenant_id="ada", overrides=PlanOverrides(max_queued=3))
    _, worker_key = await store.keys.create(Role.WORKER)
    async with (
        AsyncOpenAI(base_url=f"{server}/v1", api_key=key, timeout=HANG_SECONDS) as client,
        httpx.AsyncClient(base_url=server, headers={"authorization": f"Bearer {worker_key}"}) as http,
    ):
        worker = await HandWorker.register(http)
        large = await until(client, await create(client, [line(str(n)) for n in range(4)]), "failed")
        assert large.errors is not None
        assert [error.code for error in large.errors.data or []] == ["too_large"]
        first = await until(client, await create(client, [line("a"), line("b")]), "in_progress")
        second = await create(client, [line("c"), line("d")])
        leases = await worker.claim(num_jobs=2, wait=HANG_SECONDS)
        assert (await client.batches.retrieve(second.id)).status == "validating"
        for lease in [*leases, *(await worker.claim(num_jobs=2) if len(leases) < 2 else [])]:
            await worker.complete(lease)
        await until(client, first, "completed")
        await until(client, second, "in_progress")


async def test_tenants_see_only_their_own(server: str, store: JobStore, runner: None) -> None:
    ada, bob = [
        AsyncOpenAI(
            base_url=f"{server}/v1",
            api_key=(await store.keys.create(Role.TENANT, tenant_id=tenant_id))[1],
            timeout=HANG_SECONDS,
        )
        for tenant_id in ("ada", "bob")
    ]
    batch = await create(ada, [line("a")])
    window: Any = "24h"
    for call in (
        bob.batches.retrieve(batch.id),
        bob.batches.cancel(batch.id),
        bob.files.content(batch.input_file_id),
        bob.files.delete(batch.input_file_id),
        bob.batches.create(input_file_id=batch.input_file_id, endpoint=GENERATIONS, completion_window=window),
    ):
        with pytest.raises(openai.NotFoundError):
            await call
    assert [found.id async for found in bob.batches.list()] == []
    assert [found.id async for found in bob.files.list()] == []
    assert [found.id async for found in ada.batches.list()] == [batch.id]
    for client in (ada, bob):
        await client.close()


SOME = [("batches", "add", True), ("file_batches", "answers", True), ("file_batches", "end", False)]
EVERY = [
    (owner, name, is_done)
    for owner, names in {
        "file_batches": ("note_checked", "start", "finalize", "answers", "end", "postpone"),
        "batches": ("find_room", "add"),
    }.items()
    for name in names
    for is_done in (False, True)
]


@pytest.mark.parametrize("kills", [SOME, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["some", "every"])
async def test_nothing_is_lost_or_drawn_twice_wherever_a_process_is_killed(
    client: AsyncOpenAI,
    busy_worker: HandWorker,
    app: FastAPI,
    store: JobStore,
    monkeypatch: pytest.MonkeyPatch,
    kills: list[tuple[str, str, bool]],
) -> None:
    monkeypatch.setattr(batch_work, "ITEMS_AT_ONCE", 2)
    parts: BatchWorkParts = app.state.services.part(BatchWorkParts)
    lines = [line("a"), line("b"), line("bad", n=11), line("c"), line("d")]
    for owner, name, is_done in kills:
        place = f"killed {'after' if is_done else 'before'} {name}"
        batch = await create(client, lines)
        batch_id = batch.id.replace("batch_file_", "batch_")
        with monkeypatch.context() as patch:
            died = _die_in(patch, getattr(store, owner), name, is_done)
            runner = asyncio.create_task(FileBatchRunner(parts).run())
            await died.wait()
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
        await store.file_batches.postpone(batch_id, 0)  # as if its lease were over
        async with working(app):
            done = await until(client, batch, "completed", "failed")
        drawn, refused = [await lines_of(client, file) for file in (done.output_file_id, done.error_file_id)]
        assert [answer["custom_id"] for answer in drawn] == ["a", "b", "c", "d"], place
        assert [answer["custom_id"] for answer in refused] == ["bad"], place
        jobs = await store.jobs.list_jobs(limit=200)
        assert len([job for job in jobs if job.batch_id == batch_id]) == 4, place


def _die_in(patch: pytest.MonkeyPatch, owner: Any, name: str, is_done: bool) -> asyncio.Event:
    """Let the process that calls a method of the store die there, before or after its commit."""
    died, method = asyncio.Event(), getattr(owner, name)

    async def dying(*args: Any) -> Any:
        if is_done:
            await method(*args)
        died.set()
        raise asyncio.CancelledError

    patch.setattr(owner, name, dying)
    return died

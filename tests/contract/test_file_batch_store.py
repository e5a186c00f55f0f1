"""Batches from files: taken by one process at a time, ended once, and whole until they are answered."""

from collections.abc import Mapping
from typing import Any

import pytest

from diffuserve.domain.errors import (
    BatchNotFound,
    Conflict,
    FileInUse,
    FileNotKnown,
    IdempotencyMismatch,
    QueueFull,
)
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.file_batch import (
    FileBatch,
    FileBatchStatus,
    FileError,
    LineCounts,
    NewFileBatch,
    RefusedLine,
    TokenCounts,
)
from diffuserve.domain.jobs.input_file import FilePurpose, InputFile, NewFile, new_file_id
from diffuserve.domain.jobs.job import Band, Job
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.batches.file_batches import FileBatchEnd
from diffuserve.jobs.batches.submission import new_batch_id
from diffuserve.jobs.config import DAY
from diffuserve.jobs.queue.idempotency import Stamp
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim, complete, new_job

PLAN = Plan(name="wide")
REFUSED = RefusedLine(400, {"error": {"message": "no"}})


def new_file(tenant_id: str = "ada", purpose: FilePurpose = FilePurpose.BATCH) -> NewFile:
    shape: Mapping[str, Any] = {"filename": "a.jsonl", "size_bytes": 9, "width": 0, "height": 0}
    return NewFile(id=new_file_id(), tenant_id=tenant_id, sha256="aa" * 32, purpose=purpose, **shape)


async def lines(store: JobStore, tenant_id: str = "ada") -> InputFile:
    return await store.files.add(new_file(tenant_id), DAY, PLAN)


def new_batch(file: InputFile, **values: Any) -> NewFileBatch:
    defaults: dict[str, Any] = {
        "id": new_batch_id(),
        "tenant_id": file.tenant_id,
        "endpoint": "/v1/images/generations",
        "input_file_id": file.id,
        "completion_window": "24h",
        "window_seconds": DAY,
        "metadata": {"a": "b"},
        "output_seconds": 3_600.0,
        "base_url": "http://here",
    }
    return NewFileBatch(**(defaults | values))


async def create(store: JobStore, **values: Any) -> FileBatch:
    return await store.file_batches.create(new_batch(await lines(store), **values))


async def start(store: JobStore, batch: FileBatch, num_lines: int) -> None:
    await store.file_batches.note_checked(batch.id, num_lines, float(num_lines), "tiny")
    new = NewBatch(tenant_id=batch.tenant_id, num_items=num_lines, cost_seconds=float(num_lines))
    await store.file_batches.start(batch.id, new)


def items(batch: FileBatch, number: int) -> list[Any]:
    return [
        new_job(batch.tenant_id, band=Band.BATCH, batch_id=batch.id, custom_id=str(n)) for n in range(number)
    ]


async def due(store: JobStore) -> list[str]:
    return list((await store.file_batches.find_due((), 10)).values())


async def test_a_batch_is_due_whenever_there_is_something_to_do(
    job_store: JobStore, clock: FakeClock
) -> None:
    store = job_store.file_batches
    batch = await create(job_store)
    assert (batch.status, batch.counts, batch.metadata) == ("validating", LineCounts(), {"a": "b"})
    assert await due(job_store) == [batch.id]
    assert await store.find_due(["ada"], 10) == {}, "of a tenant that another is worked for"
    assert await store.take(batch.id, 30.0)
    assert not await store.take(batch.id, 30.0), "a process has it"
    assert await due(job_store) == []
    clock.advance(31)
    assert await due(job_store) == [batch.id], "that process was killed"
    await start(job_store, batch, 4)
    assert await job_store.batches.add(batch.id, 0, [*items(batch, 2), REFUSED]) == 3
    assert await due(job_store) == [batch.id], "one line is left"
    running = await store.get(batch.id, "ada")
    assert (running.status, running.num_stored, running.model) == ("in_progress", 3, "tiny")
    assert running.counts == LineCounts(total=4, failed=1)
    assert await job_store.batches.add(batch.id, 3, [REFUSED]) == 4
    assert await due(job_store) == [], "its jobs run"
    worker = await add_worker(job_store)
    for lease in await claim(job_store, worker, 2):
        await complete(job_store, lease)
    assert await due(job_store) == [batch.id]
    assert (await store.get(batch.id)).is_over
    await store.finalize(batch.id)
    answers = await store.answers(batch.id, 0, 100)
    assert {number: isinstance(answer, Job) for number, answer in answers.items()} == {
        0: True,
        1: True,
        2: False,
        3: False,
    }
    assert answers[2] == REFUSED
    assert (await store.get(batch.id)).status == "finalizing"


async def test_a_batch_ends_once_and_has_its_files_then(job_store: JobStore, clock: FakeClock) -> None:
    store = job_store.file_batches
    batch = await create(job_store)
    await start(job_store, batch, 1)
    await job_store.batches.add(batch.id, 0, [REFUSED])
    assert (await store.get(batch.id)).is_over, "no line became a job"
    output = new_file(purpose=FilePurpose.BATCH_OUTPUT)
    counts, tokens = LineCounts(total=1, failed=1), TokenCounts(input_tokens=2, output_tokens=3)
    ended = FileBatchEnd(status=FileBatchStatus.COMPLETED, output=output, counts=counts, tokens=tokens)
    assert await store.end(batch.id, ended)
    assert await store.end(batch.id, ended), "its commit was lost"
    other = FileBatchEnd(status=FileBatchStatus.COMPLETED, output=new_file(purpose=FilePurpose.BATCH_OUTPUT))
    assert not await store.end(batch.id, other)
    done = await store.get(batch.id)
    assert (done.status, done.counts, done.tokens, done.output_file_id) == (
        "completed",
        counts,
        tokens,
        output.id,
    )
    assert (await job_store.files.get(output.id, "ada")).expires_at == clock.now + 3_600
    assert await store.answers(batch.id, 0, 10) == {}
    with pytest.raises(Conflict, match="completed"):
        await store.cancel(batch.id)
    failed = await create(job_store)
    errors = [FileError(code="empty_file", message="no lines")]
    await store.end(failed.id, FileBatchEnd(status=FileBatchStatus.FAILED, errors=errors))
    assert (await store.get(failed.id)).errors == errors
    assert [found.id for found in await store.list_batches(tenant_id="ada")] == [failed.id, batch.id]
    assert await store.list_batches(tenant_id="bob") == []
    clock.advance(31 * DAY)
    await job_store.housekeeping.find_outdated(10)
    with pytest.raises(BatchNotFound):
        await store.get(batch.id)


async def test_what_a_batch_needs_stays_until_it_has_ended(job_store: JobStore, clock: FakeClock) -> None:
    batch = await create(job_store, window_seconds=60 * DAY)
    await start(job_store, batch, 2)
    await job_store.batches.add(batch.id, 0, items(batch, 1))
    worker = await add_worker(job_store)
    [lease] = await claim(job_store, worker)
    await complete(job_store, lease)
    with pytest.raises(FileInUse, match="batch"):
        await job_store.files.delete(batch.input_file_id, "ada")
    clock.advance(20 * DAY)
    await job_store.housekeeping.reap("reaper")
    assert await job_store.housekeeping.forget_files() == []
    assert await job_store.housekeeping.find_outdated(10) == []
    assert not (await job_store.batches.get(batch.id)).is_canceled, "its submission goes on by itself"
    await job_store.file_batches.end(batch.id, FileBatchEnd(status=FileBatchStatus.CANCELLED))
    assert await job_store.housekeeping.find_outdated(10) == [lease.job_id]
    assert await job_store.housekeeping.forget_files() == [batch.input_file_id]


async def test_a_batch_is_created_once_of_a_file_of_its_tenant(job_store: JobStore) -> None:
    file = await lines(job_store)
    image = await job_store.files.add(new_file(purpose=FilePurpose.VISION), DAY, PLAN)
    for wrong in ({"input_file_id": image.id}, {"input_file_id": "file-x"}, {"tenant_id": "bob"}):
        with pytest.raises(FileNotKnown):
            await job_store.file_batches.create(new_batch(file, **wrong))
    stamp = Stamp("ada", "key", "body")
    first, again = [await job_store.file_batches.create(new_batch(file), stamp) for _ in range(2)]
    assert first == again
    with pytest.raises(IdempotencyMismatch):
        await job_store.file_batches.create(new_batch(file), Stamp("ada", "key", "other body"))
    for _ in range(99):
        await job_store.file_batches.create(new_batch(file))
    with pytest.raises(QueueFull, match="100 batches"):
        await job_store.file_batches.create(new_batch(file))
    await job_store.file_batches.end(first.id, FileBatchEnd(status=FileBatchStatus.FAILED))
    await job_store.file_batches.create(new_batch(file))

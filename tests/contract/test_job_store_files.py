"""Uploaded images in the job store: what they are linked to, and how long they stay."""

from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import (
    Conflict,
    FileInUse,
    FileNotKnown,
    FilesFull,
    IdempotencyMismatch,
    TooLarge,
)
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.input_file import InputFile, NewFile, is_file_id, new_file_id
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.safety import Action, Finding, Verdict
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.config import DAY
from diffuserve.jobs.queue.idempotency import Stamp
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.tasks.reaper import Reaper
from diffuserve.storage.base import input_folder
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim_one, complete, fail, new_job

ANY = Plan(name="any", max_files=None, max_files_bytes=None)
FLAGGED = Verdict((Finding("nsfw", Action.BLUR, "a filter", 0.5),))


def new_file(tenant: str = "ada", sha256: str = "0f", **values: Any) -> NewFile:
    defaults: dict[str, Any] = {"filename": "a.png", "size_bytes": 100, "width": 64, "height": 48}
    return NewFile(id=new_file_id(), tenant_id=tenant, sha256=sha256, **(defaults | values))


async def add(store: JobStore, sha256: str = "0f", seconds: float = DAY, **values: Any) -> InputFile:
    return await store.files.add(new_file(sha256=sha256, **values), seconds, ANY)


async def submit(store: JobStore, *files: InputFile, mask: InputFile | None = None) -> Job:
    images = [file.as_input().to_dict() for file in files]
    masks = {} if mask is None else {"mask": mask.as_input("L").to_dict()}
    image = images[0] if len(images) == 1 else images
    return await store.jobs.submit(new_job(input={"prompt": "a star", "image": image, **masks}))


async def test_a_file_is_found_again(job_store: JobStore, clock: FakeClock) -> None:
    new = new_file(verdict=FLAGGED)
    file = await job_store.files.add(new, 60.0, ANY)
    assert is_file_id(file.id)
    assert file.expires_at == file.created_at + 60 == clock() + 60
    assert await job_store.files.get(file.id, "ada") == await job_store.files.get(file.id) == file
    assert await job_store.files.get_many([file.id, "file-0", "\0"], "ada") == {file.id: file}
    assert await job_store.files.get_many([file.id], "bob") == {}
    for unknown in (file.id, "file-0", "\0"):
        with pytest.raises(FileNotKnown):
            await job_store.files.get(unknown, "bob")


async def test_the_same_content_is_one_file_of_a_tenant(job_store: JobStore, clock: FakeClock) -> None:
    first = await add(job_store, "0f", 60.0)
    clock.advance(50.0)
    again = await add(job_store, "0f", 60.0, verdict=FLAGGED)
    assert (again.id, again.expires_at, again.verdict) == (first.id, first.expires_at + 50, FLAGGED)
    clock.advance(50.0)
    kept = await job_store.files.keep(new_file(sha256="0f"), 60.0)
    assert kept is not None
    assert (kept.id, kept.expires_at) == (first.id, first.expires_at + 100)
    assert await job_store.files.keep(new_file("bob", "0f"), 60.0) is None
    assert (await add(job_store, "0f", tenant="bob")).id != first.id
    assert (await add(job_store, "aa")).id != first.id


async def test_files_are_listed_newest_first(job_store: JobStore) -> None:
    files = [await add(job_store, str(number)) for number in range(3)]
    await add(job_store, tenant="bob")
    newest = sorted(files, key=lambda file: file.id, reverse=True)
    assert await job_store.files.list_files(tenant_id="ada", limit=2) == newest[:2]
    assert await job_store.files.list_files(tenant_id="ada", after=newest[1].id) == newest[2:]
    assert len(await job_store.files.list_files()) == 4


async def test_a_plan_bounds_files_and_their_bytes(job_store: JobStore) -> None:
    plan = Plan(name="small", max_files=2, max_files_bytes=250)
    for sha256 in ("0", "1", "1"):
        await job_store.files.add(new_file(sha256=sha256), DAY, plan)
    with pytest.raises(FilesFull, match=r"2 files of 200 bytes.*allows 2 of 250 bytes"):
        await job_store.files.add(new_file(sha256="2"), DAY, plan)
    with pytest.raises(TooLarge, match="251"):
        await job_store.files.add(new_file("bob", size_bytes=251), DAY, plan)
    await job_store.files.add(new_file("bob", size_bytes=250), DAY, plan)
    with pytest.raises(FilesFull):
        await job_store.files.add(new_file("bob", "1", size_bytes=1), DAY, plan)


async def test_a_file_that_a_job_needs_is_not_deleted(job_store: JobStore) -> None:
    image, mask, other = [await add(job_store, sha256) for sha256 in "012"]
    job = await submit(job_store, image, mask=mask)
    assert {file.id for file in await job_store.files.of_job(job.id)} == {image.id, mask.id}
    worker = await add_worker(job_store)
    await job_store.files.delete(other.id, "ada")
    for file in (image, mask):
        with pytest.raises(FileInUse, match=job.id):
            await job_store.files.delete(file.id, "ada")
    lease = await claim_one(job_store, worker)
    with pytest.raises(FileInUse):
        await job_store.files.delete(image.id)
    await complete(job_store, lease)
    with pytest.raises(FileNotKnown):
        await job_store.files.delete(image.id, "bob")
    await job_store.files.delete(image.id, "ada")
    assert [file.id for file in await job_store.files.of_job(job.id)] == [mask.id]


async def test_a_job_may_only_name_files_of_its_tenant(job_store: JobStore) -> None:
    own, gone = await add(job_store, "0"), await add(job_store, "1")
    foreign = await add(job_store, tenant="bob")
    await job_store.files.delete(gone.id)
    for missing in (foreign, gone):
        with pytest.raises(FileNotKnown, match=f"{missing.id}; .*upload it again"):
            await submit(job_store, own, missing)
    assert await job_store.jobs.list_jobs() == []


async def test_a_job_is_requeued_as_long_as_its_files_are_there(
    job_store: JobStore, clock: FakeClock, tmp_path: Path
) -> None:
    reaper = Reaper(job_store.housekeeping, LocalArtifactStore(tmp_path))
    file, worker = await add(job_store, seconds=60.0), await add_worker(job_store)
    job = await submit(job_store, file)
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    clock.advance(3_600.0)
    await reaper.forget_files()
    assert (await job_store.operations.requeue(job.id)).status is JobStatus.QUEUED
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    await job_store.files.delete(file.id, "ada")
    with pytest.raises(Conflict, match="upload it again"):
        await job_store.operations.requeue(job.id)


async def test_expired_files_are_swept_unless_a_job_may_need_them(
    job_store: JobStore, clock: FakeClock, tmp_path: Path
) -> None:
    artifacts = LocalArtifactStore(tmp_path)
    reaper = Reaper(job_store.housekeeping, artifacts)
    unused, queued, done, failed, later = [
        await add(job_store, str(number), DAY if number == 4 else 60.0) for number in range(5)
    ]
    for file in (unused, queued, done, failed, later):
        (tmp_path / input_folder(file.id)).mkdir(parents=True)
    worker = await add_worker(job_store)
    await submit(job_store, done)
    await complete(job_store, await claim_one(job_store, worker))
    failing = await submit(job_store, failed)
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    await submit(job_store, queued)

    clock.advance(59.0)
    await reaper.forget_files()
    assert len(await job_store.files.list_files()) == 5
    clock.advance(1.0)
    await reaper.forget_files()
    assert {file.id for file in await job_store.files.list_files()} == {queued.id, failed.id, later.id}
    assert {folder.name for folder in (tmp_path / "inputs").iterdir()} == {queued.id, failed.id, later.id}

    await job_store.jobs.delete(failing.id)
    await reaper.forget_outdated()
    await reaper.forget_files()
    assert {file.id for file in await job_store.files.list_files()} == {queued.id, later.id}
    await job_store.jobs.cancel((await job_store.jobs.list_jobs())[0].id)
    clock.advance(DAY)
    await reaper.forget_outdated()
    await reaper.forget_files()
    assert await job_store.files.list_files() == []
    assert list((tmp_path / "inputs").glob("*")) == []


async def test_files_that_are_not_entered_are_swept(job_store: JobStore, tmp_path: Path) -> None:
    file, reaper = await add(job_store), Reaper(job_store.housekeeping, LocalArtifactStore(tmp_path))
    for file_id in (file.id, new_file_id(), "odd"):
        (tmp_path / input_folder(file_id)).mkdir(parents=True)
    await reaper.sweep_inputs(3_600.0)
    assert len(list((tmp_path / "inputs").iterdir())) == 3, "an upload may be about to be entered"
    await reaper.sweep_inputs(-1.0)
    await reaper.sweep_orphans(-1.0)
    assert [folder.name for folder in (tmp_path / "inputs").iterdir()] == [file.id]


async def test_a_batch_links_the_files_of_its_items(job_store: JobStore) -> None:
    files = [await add(job_store, str(number)) for number in range(2)]
    items = [
        new_job(input={"prompt": "a star", "image": file.as_input().to_dict()}, custom_id=file.id)
        for file in files
    ]
    batch = await job_store.batches.open(NewBatch(tenant_id="ada", num_items=3, cost_seconds=3.0))
    assert await job_store.batches.add(batch.id, 0, items) == 2
    with pytest.raises(FileInUse):
        await job_store.files.delete(files[0].id)
    gone = new_file()
    missing = new_job(input={"prompt": "a star", "image": {"id": gone.id, "width": 1, "height": 1}})
    with pytest.raises(FileNotKnown):
        await job_store.batches.add(batch.id, 2, [missing])


async def test_room_is_looked_for_before_the_costly_work(job_store: JobStore) -> None:
    assert await job_store.jobs.find_room("ada", None) is None
    assert await job_store.jobs.find_room("ada", Stamp("ada", "key", "a body")) is None
    job = await job_store.jobs.submit(new_job(idempotency_key="key", fingerprint="a body"))
    earlier = await job_store.jobs.find_room("ada", Stamp("ada", "key", "a body"))
    assert earlier is not None
    assert earlier.id == job.id
    with pytest.raises(IdempotencyMismatch):
        await job_store.jobs.find_room("ada", Stamp("ada", "key", "another body"))

"""The parts of a clip that is being drawn, as its worker stores them and takes them back."""

from unittest.mock import ANY

import httpx
import pytest

from diffuserve.domain.errors import ArtifactNotFound
from diffuserve.domain.jobs.job import VIDEO_GENERATE, NewJob
from diffuserve.domain.workers.worker import Lease
from diffuserve.events.base import job_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.storage.live_parts import live_key
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HandWorker


async def _claimed(store: JobStore, worker: HandWorker, live: bool = True) -> Lease:
    clip = NewJob(
        tenant_id="default",
        model="hand",
        kind=VIDEO_GENERATE,
        input={"prompt": "a star", "num_images": 1, "seed": 1},
        cost_seconds=1.0,
        live=live,
    )
    await store.jobs.submit(clip)
    (lease,) = await worker.claim()
    return lease


async def _stored(artifacts: LocalArtifactStore, lease: Lease, number: int) -> bytes:
    key = live_key(lease.job_id, lease.lease_token, number)
    return b"".join([chunk async for chunk in artifacts.read(key)])


async def test_parts_are_announced_as_they_are_stored(
    store: JobStore, worker: HandWorker, artifacts: LocalArtifactStore, bus: MemoryEventBus
) -> None:
    lease = await _claimed(store, worker)
    assert lease.live
    assert (await store.jobs.get(lease.job_id)).live
    with bus.subscribe(job_topic(lease.job_id)) as messages:
        for number, content in enumerate((b"header", b"frames")):
            response = await worker.upload_part(lease, number, content)
            assert (response.status_code, response.json()["size_bytes"]) == (201, 6)
            assert await messages.get(0) == {"type": "live", "num_parts": number + 1}
    assert [await _stored(artifacts, lease, number) for number in range(2)] == [b"header", b"frames"]


async def test_parts_can_be_taken_back(
    store: JobStore, worker: HandWorker, artifacts: LocalArtifactStore
) -> None:
    lease = await _claimed(store, worker)
    await worker.upload(lease, "0.mp4")
    await worker.upload_part(lease, 0, b"header")
    for _ in range(2):
        assert (await worker.drop_parts(lease)).status_code == 204
    with pytest.raises(ArtifactNotFound):
        await _stored(artifacts, lease, 0)
    assert await artifacts.size(f"{lease.job_id}/{lease.lease_token}/0.mp4"), "files of the job stay"


async def test_a_lost_lease_stores_and_takes_back_nothing(
    store: JobStore, worker: HandWorker, artifacts: LocalArtifactStore
) -> None:
    lost = await _claimed(store, worker)
    await worker.upload_part(lost, 0, b"header")
    await worker.release(lost)
    await worker.claim()
    for response in (await worker.upload_part(lost, 1, b"frames"), await worker.drop_parts(lost)):
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost")
    assert await _stored(artifacts, lost, 0) == b"header"


async def test_a_job_that_did_not_ask_for_parts_has_none(
    store: JobStore, worker: HandWorker, artifacts: LocalArtifactStore, bus: MemoryEventBus
) -> None:
    lease = await _claimed(store, worker, live=False)
    with bus.subscribe(job_topic(lease.job_id)) as messages:
        response = await worker.upload_part(lease, 0, b"header")
        assert (response.status_code, response.json()["code"]) == (409, "conflict")
        assert '"live": true' in response.json()["detail"]
        assert await messages.get(0) is None
    with pytest.raises(ArtifactNotFound):
        await _stored(artifacts, lease, 0)
    assert (await worker.drop_parts(lease)).status_code == 204
    assert (await worker.upload(lease, "0.mp4")).status_code == 201, "its files are stored as ever"


@pytest.mark.parametrize("number", ["-1", "10000", "x"])
async def test_a_part_has_a_number(store: JobStore, worker: HandWorker, number: str) -> None:
    lease = await _claimed(store, worker)
    response = await worker.upload_part(lease, number, b"header")  # type: ignore[arg-type]
    assert response.status_code == 422


async def test_images_are_not_drawn_live(http: httpx.AsyncClient, worker: HandWorker) -> None:
    response = await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}, "live": True})
    assert response.status_code == 422
    assert response.json()["errors"] == [{"field": "live", "message": ANY}]
    assert "is for clips" in response.text

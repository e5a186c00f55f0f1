"""Progress of several jobs in one request."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from diffuserve.domain.jobs.progress_report import MAX_PROGRESS_JOBS
from diffuserve.domain.tenant import Role
from diffuserve.events.base import job_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker

CAT = {"input": {"prompt": "a cat"}}


async def submit(http: httpx.AsyncClient) -> str:
    return str((await http.post("/v1/jobs", json=CAT)).json()["id"])


@pytest.fixture
def told(bus: MemoryEventBus) -> Iterator["Told"]:
    with ExitStack() as stack:
        yield Told(bus, stack)


class Told:
    """Steps that were published of the jobs that it listens to."""

    def __init__(self, bus: MemoryEventBus, stack: ExitStack) -> None:
        self._bus, self._stack = bus, stack
        self.steps: list[tuple[str, int]] = []

    def listen(self, job_id: str) -> None:
        def note(message: Mapping[str, Any]) -> None:
            if message["type"] == "progress":
                self.steps.append((job_id, message["step"]))

        self._stack.enter_context(self._bus.listen(job_topic(job_id), note))


async def test_a_request_reports_several_jobs(
    http: httpx.AsyncClient, worker: HandWorker, told: Told
) -> None:
    first, second = await submit(http), await submit(http)
    leases = {lease.job_id: lease for lease in await worker.claim(num_jobs=2)}
    for job_id in (first, second):
        told.listen(job_id)
    response = await worker.report_all((leases[first], 1), (leases[second], 3))
    assert response.json() == {"watched": []}
    assert told.steps == [(first, 1), (second, 3)]


async def test_a_worker_learns_which_of_its_jobs_are_watched(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    read, _unread = await submit(http), await submit(http)
    leases = await worker.claim(num_jobs=2)
    assert (await worker.report_all(*((lease, 1) for lease in leases))).json() == {"watched": []}
    await http.get(f"/v1/jobs/{read}")
    assert (await worker.report_all(*((lease, 2) for lease in leases))).json() == {"watched": [read]}


async def test_progress_of_a_lost_lease_is_dropped_and_that_of_others_is_not(
    http: httpx.AsyncClient, worker: HandWorker, told: Told
) -> None:
    lost, kept = await submit(http), await submit(http)
    stale = {lease.job_id: lease for lease in await worker.claim(num_jobs=2)}
    await worker.release(stale[lost])
    [fresh] = await worker.claim()
    for job_id in (lost, kept):
        told.listen(job_id)
    assert (await worker.report_all((stale[lost], 2), (stale[kept], 2))).status_code == 200
    assert told.steps == [(kept, 2)]
    await worker.report_all((fresh, 1))
    assert told.steps == [(kept, 2), (lost, 1)]


async def test_a_worker_reports_no_job_of_another(
    http: httpx.AsyncClient, worker: HandWorker, told: Told
) -> None:
    told.listen(await submit(http))
    [lease] = await worker.claim()
    other = await HandWorker.register(http)
    assert (await other.report_all((lease, 2))).json() == {"watched": []}
    assert told.steps == []


async def test_only_the_key_that_registered_a_worker_reports_its_progress(
    http: httpx.AsyncClient, store: JobStore
) -> None:
    (_, own), (_, foreign) = [await store.keys.create(Role.WORKER) for _ in range(2)]
    http.headers["authorization"] = f"Bearer {own}"
    mine = await HandWorker.register(http)
    http.headers["authorization"] = f"Bearer {foreign}"
    response = await mine.report_all()
    assert (response.status_code, response.json()["code"]) == (404, "worker_not_found")


async def test_previews_and_endless_reports_are_refused(http: httpx.AsyncClient, worker: HandWorker) -> None:
    await submit(http)
    [lease] = await worker.claim()
    with_preview = await worker.report_all((lease, 1), preview="iVBO", preview_index=0)
    too_many = await worker.report_all(*[(lease, 1)] * (MAX_PROGRESS_JOBS + 1))
    for response, field in ((with_preview, "preview"), (too_many, "jobs")):
        assert response.status_code in (400, 422)
        assert response.json()["code"] == "invalid_params"
        assert field in response.text

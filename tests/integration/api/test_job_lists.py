"""Lists of jobs over HTTP: filters, pages and tags."""

from typing import Any

import httpx
import pytest

from diffuserve.sdk.async_client import AsyncClient, JobFilters
from support.hand_worker import HandWorker


async def submit(http: httpx.AsyncClient, prompt: str, **body: Any) -> str:
    response = await http.post("/v1/jobs", json={"input": {"prompt": prompt}} | body)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


async def listed(http: httpx.AsyncClient, **query: Any) -> list[str]:
    response = await http.get("/v1/jobs", params=query)
    assert response.status_code == 200, response.text
    return [job["id"] for job in response.json()["data"]]


async def test_jobs_are_filtered(http: httpx.AsyncClient, worker: HandWorker) -> None:
    red, blue, again = [await submit(http, prompt) for prompt in ("a red cat", "a blue cat", "a red cat")]
    batch = {"items": [{"custom_id": "1", "input": {"prompt": "a red dog"}}]}
    batch_id = (await http.post("/v1/batches", json=batch)).json()["id"]
    [item] = await listed(http, batch_id=batch_id)
    assert await listed(http, query="CAT red") == [again, red]
    assert await listed(http, prompt_of=red) == [again, red]
    assert await listed(http, model="hand", kind="image.generate") == [item, again, blue, red]
    assert await listed(http, model="other") == []
    await http.post(f"/v1/jobs/{blue}/cancel")
    assert await listed(http, query="cat", status=["canceled", "failed"]) == [blue]
    page = (await http.get("/v1/jobs", params={"query": "cat", "limit": 2})).json()
    assert (page["has_more"], page["next"]) == (True, blue)
    assert await listed(http, query="cat", after=page["next"]) == [red]


async def test_the_client_goes_on_until_it_has_found_enough(
    http: httpx.AsyncClient, app: Any, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuserve.jobs.reads.search.ROWS_BY_PROMPT", 2)
    monkeypatch.setattr("diffuserve.jobs.reads.search._ROWS_AT_ONCE", 1)
    ids = [await submit(http, prompt) for prompt in ("a cat", "a cat", "a dog", "a dog", "a dog", "a cat")]
    async with AsyncClient("http://api.test", transport=httpx.ASGITransport(app)) as client:
        cats = JobFilters(query="cat")
        assert len((await client.list_jobs(filters=cats)).data) == 1, "two jobs are looked at"
        assert [job.id for job in (await client.find_jobs(filters=cats)).data] == [ids[5], ids[1], ids[0]]
        assert [job.id for job in (await client.find_jobs(filters=cats, limit=2)).data] == [ids[5], ids[1]]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"query": "x" * 201}, 422),
        ({"query": "a\x00b"}, 422),
        ({"model": ""}, 422),
        ({"kind": "text"}, 422),
        ({"prompt_of": "job_00"}, 404),
        ({"after": "../x"}, 404),
        ({"batch_id": "no batch"}, 404),
    ],
)
async def test_bad_filters_are_refused(http: httpx.AsyncClient, query: dict[str, str], status: int) -> None:
    response = await http.get("/v1/jobs", params=query)
    assert response.status_code == status, response.text


async def test_the_tag_of_a_page_changes_with_its_jobs(http: httpx.AsyncClient, worker: HandWorker) -> None:
    first = await submit(http, "a cat")
    page = await http.get("/v1/jobs")
    again = await http.get("/v1/jobs", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    [lease] = await worker.claim()
    await worker.report(lease, 1, 4)
    changed = await http.get("/v1/jobs", headers={"if-none-match": page.headers["etag"]})
    [job] = changed.json()["data"]
    assert (job["id"], job["progress"]["step"]) == (first, 1)
    await submit(http, "another")
    more = await http.get("/v1/jobs", headers={"if-none-match": changed.headers["etag"]})
    assert more.status_code == 200


async def test_a_job_tells_its_tenant_worker_and_device_seconds(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job_id = await submit(http, "a cat")
    queued = (await http.get(f"/v1/jobs/{job_id}")).json()
    assert queued["tenant_id"]
    assert (queued["worker_id"], queued["actual_seconds"]) == (None, None)
    [lease] = await worker.claim()
    await worker.complete(lease)
    done = (await http.get(f"/v1/jobs/{job_id}")).json()
    assert done["worker_id"] == worker.id
    assert 0 < done["actual_seconds"] <= 0.1, "no more than can have passed"
    assert done["cost_seconds"] == queued["cost_seconds"] > 0

"""Jobs that must be exact: workers with quantized weights neither get nor hide them."""

import asyncio

import httpx

from support.hand_worker import HandWorker

EXACT = {"input": {"prompt": "a cat", "seed": 1}, "exact": True}


async def wait_for_kinds(http: httpx.AsyncClient, expected: list[str]) -> None:
    """Wait until the server, which looks at its workers once a second, tells these kinds of its model."""
    while True:
        [model] = (await http.get("/v1/models")).raise_for_status().json()["data"]
        if model["quantizations"] == expected:
            return
        await asyncio.sleep(0.1)


async def test_a_job_tells_whether_it_must_be_exact(http: httpx.AsyncClient, worker: HandWorker) -> None:
    accepted = await http.post("/v1/jobs", json=EXACT)
    assert (accepted.status_code, accepted.json()["exact"]) == (202, True)
    assert not (await http.post("/v1/jobs", json=EXACT | {"exact": False})).json()["exact"]


async def test_workers_of_quantized_weights_get_no_exact_jobs(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    exact = (await http.post("/v1/jobs", json=EXACT)).json()["id"]
    other = (await http.post("/v1/jobs", json=EXACT | {"exact": False})).json()["id"]
    assert [lease.job_id for lease in await worker.claim(4)] == [other], "it has not said that it may"
    await worker.beat("ready", quantization="int8")
    assert not await worker.claim(4)
    await worker.beat("ready", quantization="none")
    assert [lease.job_id for lease in await worker.claim(4)] == [exact]


async def test_exact_jobs_are_refused_where_the_weights_of_all_workers_are_quantized(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await worker.beat("ready", quantization="fp8")
    await wait_for_kinds(http, ["fp8"])
    problem = (await http.post("/v1/jobs", json=EXACT)).json()
    assert (problem["status"], problem["code"]) == (422, "invalid_params")
    assert "weights in fp8; leave it out" in problem["detail"]
    assert [error["field"] for error in problem["errors"]] == ["exact"]
    second = await HandWorker.register(http, name="exact")
    await second.beat("ready", quantization="none")
    await wait_for_kinds(http, ["fp8", "none"])
    assert (await http.post("/v1/jobs", json=EXACT)).status_code == 202


async def test_items_of_a_batch_are_exact_one_by_one(http: httpx.AsyncClient, worker: HandWorker) -> None:
    items = [_item("exact", exact=True), _item("not", exact=False), _item("unsaid")]
    batch = (await http.post("/v1/batches", json={"items": items})).raise_for_status().json()
    jobs = (await http.get(f"/v1/jobs?batch_id={batch['id']}")).json()["data"]
    exact = {job["custom_id"]: job["exact"] for job in jobs}
    assert exact == {"exact": True, "not": False, "unsaid": False}
    await worker.beat("ready", quantization="int4")
    assert len(await worker.claim(8)) == 2
    await worker.beat("ready", quantization="none")
    assert len(await worker.claim(8)) == 1


async def test_a_batch_with_an_exact_item_is_refused_where_all_weights_are_quantized(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await worker.beat("ready", quantization="fp8")
    await wait_for_kinds(http, ["fp8"])
    items = [_item("not"), _item("exact", exact=True)]
    refused = await http.post("/v1/batches", json={"items": items})
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["items.1.exact"]
    assert (await http.post("/v1/batches", json={"items": items[:1]})).is_success


def _item(custom_id: str, **more: bool) -> dict[str, object]:
    return {"custom_id": custom_id, "input": EXACT["input"], **more}


async def test_jobs_of_both_kinds_are_told_apart_in_the_queue(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    for is_exact in (True, False, True, False):
        await http.post("/v1/jobs", json=EXACT | {"exact": is_exact})
    await worker.beat("ready", quantization="int4")
    assert len(await worker.claim(8)) == 2
    await worker.beat("ready", quantization="none")
    assert len(await worker.claim(8)) == 2

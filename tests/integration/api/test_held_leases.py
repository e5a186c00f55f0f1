"""Routes of a lease act for the worker that holds it alone."""

import re
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

from diffuserve.domain.tenant import Role
from diffuserve.domain.workers.worker import Lease
from diffuserve.jobs.store import JobStore
from support.hand_worker import HandWorker

PLACES = {"name": "0.png", "number": "0", "file_id": "file_0", "slot": "0"}
HASH = "0" * 64
BODIES: Mapping[str, Mapping[str, Any]] = {
    "events": {"phase": "denoise"},
    "complete": {"result": {}, "actual_seconds": 1},
    "hand-over": {"size_bytes": 1, "sha256": HASH, "weights": HASH, "actual_seconds": 1},
    "fail": {"error": {"code": "broken", "message": "it is", "retryable": False}},
    "release": {},
    "checkpoint": {"slot": 0, "step": 1, "size_bytes": 1, "sha256": HASH},
}
"""What the routes read that take a report, beside the token in it; all others have the token as a header."""


def lease_routes(app: FastAPI) -> list[tuple[str, str]]:
    """Return method and path of every route that has a lease in its path."""
    paths = app.openapi()["paths"]
    return [(method, path) for path in paths if "/leases/" in path for method in paths[path]]


async def call(http: httpx.AsyncClient, method: str, path: str, lease: Lease) -> httpx.Response:
    url = re.sub(r"{(\w+)}", lambda found: {**PLACES, "job_id": lease.job_id}[found[1]], path)
    report = BODIES.get(path.rpartition("/")[2]) if method == "post" else None
    if report is not None:
        return await http.request(method, url, json={"lease_token": lease.lease_token, **report})
    headers = {"lease-token": str(lease.lease_token)}
    return await http.request(method, url, headers=headers, content=b"x" if method == "put" else None)


async def test_every_route_of_a_lease_checks_its_token_and_its_worker(
    http: httpx.AsyncClient, app: FastAPI, store: JobStore
) -> None:
    (_, own), (_, foreign) = [await store.keys.create(Role.WORKER) for _ in range(2)]
    _, tenant = await store.keys.create(Role.TENANT, tenant_id="ada")

    def use(key: str) -> None:
        http.headers["authorization"] = f"Bearer {key}"

    use(own)
    worker = await HandWorker.register(http)
    use(tenant)
    job = (await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}})).json()
    use(own)
    [stale] = await worker.claim()
    await worker.release(stale)
    [held] = await worker.claim()
    before = await store.jobs.get(job["id"])
    routes = lease_routes(app)
    assert len(routes) > len(BODIES)
    for key, lease in ((own, stale), (foreign, held)):
        use(key)
        for method, path in routes:
            response = await call(http, method, path, lease)
            told = (response.status_code, response.json().get("code"))
            assert told == (409, "lease_lost"), f"{method} {path}: {response.text}"
    assert await store.jobs.get(job["id"]) == before

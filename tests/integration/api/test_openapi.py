"""Requests generated from the OpenAPI document never break the server, whose responses match the document."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from uvicorn import Config, Server

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from support.clips import CLIPS
from support.hand_worker import HAND_SPEC, HandWorker
from support.waiting import HANG_SECONDS

BOUNDED = settings(
    phases=[Phase.generate],  # failures are printed without being reduced
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SHORT = ApiConfig(
    longest_wait_seconds=0.05, longest_poll_seconds=0.05, poll_seconds=0.05, default_model=HAND_SPEC.name
)


@dataclass
class LiveApi:
    """Server in a thread of its own, with a worker that completes every job."""

    folder: Path
    database: str
    num_requests: int  # to each operation
    url: str = ""
    known: dict[str, str] = field(default_factory=dict)
    started: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> None:
        bus = MemoryEventBus()
        store = JobStore(self.database, bus, StoreConfig(lease_seconds=3600))
        await store.open()
        app = create_app(store, LocalArtifactStore(self.folder / "artifacts"), bus, SHORT)
        server = Server(Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.01)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=self.url, timeout=HANG_SECONDS) as http:
            await self._serve_jobs(http)
        server.should_exit = True
        await serving
        await store.close()

    async def _serve_jobs(self, http: httpx.AsyncClient) -> None:
        worker, target = await HandWorker.register(http, (HAND_SPEC, CLIPS)), await HandWorker.register(http)
        webhook = {"url": "https://hooks.example/"}
        job = (await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}, "webhook": webhook})).json()
        item = {"custom_id": "a", "input": {"prompt": "a cat"}}
        batch = (await http.post("/v1/batches", json={"items": [item]})).json()
        self.known = {"job_id": job["id"], "worker_id": target.id, "name": "0.png", "lease_token": "1"}
        self.known |= {"batch_id": batch["id"]} | await self._delivery_ids(http, job["id"])
        working = asyncio.create_task(worker.work())
        self.started.set()
        await asyncio.to_thread(self.stop.wait)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    async def _delivery_ids(self, http: httpx.AsyncClient, job_id: str) -> dict[str, str]:
        """Cause a webhook delivery, and return its ids."""
        await http.post(f"/v1/jobs/{job_id}/cancel")
        [endpoint] = (await http.get("/v1/webhooks")).json()["data"]
        path = f"/v1/webhooks/{endpoint['id']}/deliveries"
        [delivery] = (await http.get(path)).json()["data"]
        return {"endpoint_id": endpoint["id"], "delivery_id": delivery["id"]}


# `make test` sends few, though of every kind: well-formed or not, with known ids or without.
@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def live_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveApi]:
    folder = tmp_path_factory.mktemp("api")
    database, num_requests = f"sqlite:///{folder}/jobs.db", 3
    if request.param == "postgresql":
        num_requests = 24
        database = request.getfixturevalue("postgres").create_database("openapi")
    api = LiveApi(folder, database, num_requests)
    thread = threading.Thread(target=lambda: asyncio.run(api.run()))
    thread.start()
    assert api.started.wait(HANG_SECONDS)
    yield api
    api.stop.set()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()


@cache
def operations() -> dict[str, Any]:
    """Return the operations by method and path; the document needs no open store."""
    import schemathesis  # here: importing it and reading the document take seconds
    from schemathesis.core.result import Ok

    bus = MemoryEventBus()
    store = JobStore("sqlite://", bus, StoreConfig())
    app = create_app(store, LocalArtifactStore(Path()), bus, ApiConfig())
    schema = schemathesis.openapi.from_dict(app.openapi())
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return {operation.label: operation for operation in found}


ENDLESS = {"GET /v1/operations/events"}
"""Streams that end when their reader does; tests of their own read them."""


def names() -> set[str]:
    """Return method and path of every operation."""
    return {
        "GET /v1/adapters",
        "POST /v1/adapters",
        "GET /v1/adapters/{name}",
        "DELETE /v1/adapters/{name}",
        "POST /v1/jobs",
        "POST /v1/jobs/estimate",
        "GET /v1/jobs",
        "GET /v1/jobs/archive",
        "GET /internal/v1/scale/{pool}",
        "GET /v1/jobs/{job_id}",
        "DELETE /v1/jobs/{job_id}",
        "POST /v1/jobs/{job_id}/cancel",
        "POST /v1/jobs/{job_id}/requeue",
        "GET /v1/jobs/{job_id}/events",
        "GET /v1/jobs/{job_id}/result",
        "GET /v1/jobs/{job_id}/live",
        "POST /v1/videos",
        "GET /v1/videos",
        "GET /v1/videos/{video_id}",
        "GET /v1/videos/{video_id}/content",
        "DELETE /v1/videos/{video_id}",
        "POST /v1/videos/{video_id}/remix",
        "POST /v1/videos/edits",
        "POST /v1/videos/extensions",
        "GET /v1/leases/{job_id}/latents",
        "POST /v1/leases/{job_id}/hand-over",
        "GET /v1/leases/{job_id}/checkpoint",
        "POST /v1/leases/{job_id}/checkpoint",
        "PUT /v1/leases/{job_id}/checkpoint/{slot}",
        "POST /v1/leases/{job_id}/checkpoint/{slot}/upload-url",
        "POST /v1/batches",
        "GET /v1/batches",
        "GET /v1/batches/{batch_id}",
        "POST /v1/batches/{batch_id}/cancel",
        "GET /v1/batches/{batch_id}/results",
        "GET /v1/batches/batch_file_{digits}",
        "POST /v1/batches/batch_file_{digits}/cancel",
        "POST /v1/files",
        "GET /v1/files",
        "GET /v1/files/{file_id}",
        "GET /v1/files/{file_id}/content",
        "DELETE /v1/files/{file_id}",
        "GET /v1/webhooks",
        "GET /v1/webhooks/secret",
        "POST /v1/webhooks/secret/rotate",
        "POST /v1/webhooks/{endpoint_id}/enable",
        "GET /v1/webhooks/{endpoint_id}/deliveries",
        "POST /v1/webhooks/{endpoint_id}/deliveries/{delivery_id}/redeliver",
        "GET /files/{job_id}/{lease_token}/{name}",
        "GET /v1/models",
        "GET /v1/plan",
        "GET /v1/usage",
        "GET /v1/models/{model}",
        "POST /v1/images/generations",
        "POST /generate",
        "GET /jobs/{job_id}",
        "DELETE /jobs/{job_id}",
        "GET /",
        "GET /version",
        "GET /v1/session",
        "POST /v1/session",
        "DELETE /v1/session",
        "GET /v1/operations",
        "GET /v1/operations/history",
        "GET /v1/operations/events",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "POST /v1/images/edits",
        "POST /v1/images/variations",
        "GET /v1/workers",
        "POST /v1/workers",
        "GET /v1/workers/{worker_id}/peers",
        "POST /v1/workers/{worker_id}/claim",
        "POST /v1/workers/{worker_id}/heartbeat",
        "POST /v1/workers/{worker_id}/progress",
        "DELETE /v1/workers/{worker_id}",
        "POST /v1/workers/{worker_id}/drain",
        "POST /v1/workers/{worker_id}/leave",
        "POST /v1/workers/{worker_id}/models",
        "GET /v1/workers/{worker_id}/order",
        "POST /v1/workers/{worker_id}/order",
        "DELETE /v1/workers/{worker_id}/order",
        "GET /v1/workers/{worker_id}/control",
        "POST /v1/leases/{job_id}/events",
        "POST /v1/leases/{job_id}/complete",
        "POST /v1/leases/{job_id}/fail",
        "POST /v1/leases/{job_id}/release",
        "PUT /v1/leases/{job_id}/files/{name}",
        "POST /v1/leases/{job_id}/files/{name}/upload-url",
        "PUT /v1/leases/{job_id}/live/{number}",
        "DELETE /v1/leases/{job_id}/live",
        "GET /v1/leases/{job_id}/inputs",
        "GET /v1/leases/{job_id}/inputs/{file_id}",
    }


def test_the_document_names_every_route_of_the_api() -> None:
    assert set(operations()) == names()


def test_every_operation_has_a_summary_and_a_group() -> None:
    for label, operation in operations().items():
        raw = operation.definition.raw
        assert raw["summary"], label
        assert raw["tags"], label


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # schemathesis does
@pytest.mark.parametrize("label", sorted(names() - ENDLESS))
def test_no_request_breaks_the_server_and_every_response_is_documented(live_api: LiveApi, label: str) -> None:
    """Name an existing job and worker in half of the requests."""
    from schemathesis import GenerationMode, checks

    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    all_checks = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]

    @settings(BOUNDED, max_examples=live_api.num_requests)
    @given(case=st.one_of(*map(operations()[label].as_strategy, modes)), is_known=st.booleans())
    def send(case: Any, is_known: bool) -> None:
        if is_known:
            known = {name: live_api.known[name] for name in case.path_parameters if name in live_api.known}
            case.path_parameters.update(known)
        case.call_and_validate(live_api.url, checks=all_checks, timeout=HANG_SECONDS)

    send()

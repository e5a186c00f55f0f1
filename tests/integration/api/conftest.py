"""The API over SQLite, a folder and an in-memory bus: in process, and behind a real server."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.http.openapi import DocumentedApi
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HandWorker
from support.painting import shared_pool
from support.waiting import HANG_SECONDS

_DOCUMENTS: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="module")
def pool() -> Iterator[IntakePool]:
    """Share the processes that read images among the tests of a module."""
    with shared_pool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def _one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the OpenAPI document once: it takes longer than most tests."""
    build = DocumentedApi.openapi

    def openapi(app: DocumentedApi) -> dict[str, Any]:
        if app.version not in _DOCUMENTS:
            _DOCUMENTS[app.version] = build(app)
        return _DOCUMENTS[app.version]

    monkeypatch.setattr(DocumentedApi, "openapi", openapi)


@pytest.fixture
def bus() -> MemoryEventBus:
    return MemoryEventBus()


@pytest.fixture
def artifacts(tmp_path: Path) -> LocalArtifactStore:
    return LocalArtifactStore(tmp_path / "artifacts")


@pytest.fixture
async def store(
    tmp_path: Path, migrated_file: Path, bus: MemoryEventBus, store_config: StoreConfig
) -> AsyncGenerator[JobStore]:
    shutil.copy(migrated_file, tmp_path / "jobs.db")
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", bus, store_config)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def make_app(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus
) -> Callable[[ApiConfig], FastAPI]:
    return lambda config: create_app(store, artifacts, bus, config)


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI]) -> FastAPI:
    return make_app(ApiConfig(poll_seconds=0.2))


@pytest.fixture
async def http(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    """Call the application in process, without a socket; a response arrives when it is complete."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        yield http


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http)


@pytest.fixture
async def server(app: FastAPI) -> AsyncGenerator[str]:
    """Serve the application on a free port, and yield its base URL."""
    async with serving(app) as url:
        yield url


@pytest.fixture
async def client(server: str) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server}/v1", api_key="any", timeout=HANG_SECONDS) as client:
        yield client


@pytest.fixture
async def busy_worker(worker: HandWorker) -> AsyncGenerator[HandWorker]:
    """Complete every job, in the background."""
    working = asyncio.create_task(worker.work())
    yield worker
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to pytest."""
        yield


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncGenerator[str]:
    config = uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(HANG_SECONDS):
        while not server.started:
            await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await task

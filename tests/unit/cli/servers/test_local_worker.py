"""The worker of `diffuserve serve`: its arguments, its key, its restarts and its end."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diffuserve.api.auth.access import Authenticator
from diffuserve.backoff import Backoff, RestartPolicy
from diffuserve.cli.servers import local_worker as module
from diffuserve.cli.servers.local_worker import (
    Launch,
    LocalWorker,
    arguments,
    server_with_worker,
)
from diffuserve.domain.errors import Unauthorized
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from support.waiting import eventually

READ_KEY = "import os, sys; line = os.read(int(sys.argv[-1]), 99); "


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    async with open_store(Settings(data_dir=tmp_path)) as store:
        yield store


@pytest.fixture(autouse=True)
def restart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RestartPolicy(Backoff(first_seconds=0.0, longest_seconds=0.0), healthy_seconds=60.0)
    monkeypatch.setattr(module, "RESTARTS", policy)


def program(code: str, *, drain_seconds: float = 30.0, log: Path | None = None) -> LocalWorker:
    """A worker whose process runs this program; its last argument is the pipe's descriptor."""
    worker = LocalWorker((), drain_seconds, log)
    worker.admit("s3cret")
    worker._command = [sys.executable, "-c", READ_KEY + code]
    return worker


def test_local_worker_gets_the_settings_of_its_server_and_no_secret() -> None:
    settings = Settings.with_options(
        data_dir=Path("/data"), model="m", drain_seconds=2, file_metadata=False, api_key="s3cret"
    )
    words = arguments("http://127.0.0.1:1", settings, "python -m engine")
    assert words[:6] == [
        *("--server", "http://127.0.0.1:1"),
        *("--name", f"serve:{socket.gethostname()}:/data"),
        *("--engine-command", "python -m engine"),
    ]
    assert {"--model", "m", "--drain-seconds", "2.0", "--no-metadata"} <= set(words)
    assert "--device" not in words, "what has no value is left to the worker's own default"
    assert "s3cret" not in words
    assert "--engine-command" not in arguments("http://127.0.0.1:1", settings, None)


async def test_the_worker_reads_its_key_from_a_pipe(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    worker = program("sys.stderr.write(line.decode()); sys.exit(2)", log=log)
    assert await worker.run() == 2
    assert log.read_text(encoding="utf-8") == "s3cret\n"


async def test_a_worker_that_cannot_start_is_not_restarted(tmp_path: Path) -> None:
    worker = program(f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); sys.exit(2)")
    assert await worker.run() == 2
    assert (tmp_path / "starts").read_text() == "x"


async def test_a_worker_that_dies_is_restarted(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    count = f"file = open({str(starts)!r}, 'a+'); file.write('x'); file.flush(); file.seek(0); "
    worker = program(count + "sys.exit(2 if len(file.read()) == 3 else 1)")
    assert await worker.run() == 2
    assert starts.read_text() == "xxx"


async def test_stopping_lets_the_worker_drain(tmp_path: Path) -> None:
    ready, drained = tmp_path / "ready", tmp_path / "drained"
    code = (
        "import signal, time, pathlib; "
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(drained)!r}).touch(), sys.exit(0))); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    worker = program(code)
    running = asyncio.create_task(worker.run())
    await eventually(ready.exists)
    await worker.stop()
    assert await running == 0
    assert drained.exists()


async def test_a_worker_that_does_not_drain_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_MARGIN", 0.0)
    ready = tmp_path / "ready"
    ignore = "import signal, time, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    code = ignore + f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    worker = program(code, drain_seconds=0.0)
    running = asyncio.create_task(worker.run())
    await eventually(ready.exists)
    await worker.stop()
    assert await running == 0
    assert worker._process is not None
    assert worker._process.returncode == -9


async def test_the_worker_starts_before_its_server_and_gets_the_key_later(tmp_path: Path) -> None:
    started, log = tmp_path / "started", tmp_path / "worker.log"
    worker = LocalWorker((), 0.0, log)
    touch = f"import os, sys; open({str(started)!r}, 'w'); line = os.read(int(sys.argv[-1]), 99); "
    worker._command = [sys.executable, "-c", touch + "sys.stderr.write(line.decode()); sys.exit(2)"]
    running = asyncio.create_task(worker.run())
    await eventually(started.exists)
    assert not running.done()
    worker.admit("s3cret")
    assert await running == 2
    assert log.read_text(encoding="utf-8") == "s3cret\n"


async def test_a_worker_has_a_key_of_its_servers_own_which_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    class Recorded(LocalWorker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._command = [sys.executable, "-c", "import time; time.sleep(600)"]

        def admit(self, key: str) -> None:
            super().admit(key)
            keys.append(key)

    monkeypatch.setattr(module, "LocalWorker", Recorded)
    settings = Settings(data_dir=tmp_path, port=0, prompt_filter="none")
    async with open_store(settings) as store:
        await store.keys.create(Role.TENANT, tenant_id="ada")
    async with server_with_worker(settings, False, Launch()) as running:
        plane = running.server.plane
        assert not running.worker.done()
        stored = [key.tenant_id for key in await plane.store.keys.list_keys()]
        assert stored == ["ada"], "a stored key of the worker would close an open server"
        [secret] = keys
        assert (await plane.authenticator.caller(secret)).roles == {Role.WORKER}
        with pytest.raises(Unauthorized):
            await Authenticator(plane.store, without_keys=False).caller(secret)


def test_the_pipe_of_the_key_is_closed_with_the_worker() -> None:
    before = set(os.listdir("/proc/self/fd"))
    asyncio.run(program("sys.exit(2)").run())
    assert set(os.listdir("/proc/self/fd")) <= before

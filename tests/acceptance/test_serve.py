"""`diffuserve serve` and its neighbors as a person runs them: real processes, killed in every way.

Commands that a server answers run within the test's process, where they start faster.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image

from diffuserve.cli.servers.demo_scenes import SCENES
from support.command import Invoke, invoker
from support.waiting import HANG_SECONDS, block_until

DIFFUSERVE = [sys.executable, "-m", "diffuserve"]
NULL_ENGINE = f"{sys.executable} -m diffuserve.testing.null_engine"
SLOW_ENGINE = f"{NULL_ENGINE} --seconds 3600"
MAX_IMPORT_TIMES = 6.0  # 3.2 on an idle machine of two cores, up to 4.6 beside six busy processes


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFUSERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DIFFUSERVE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DIFFUSERVE_PORT", "0")


class Server:
    """A running `serve` or `api`."""

    def __init__(self, process: "subprocess.Popen[str]", address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_until_ready(self) -> None:
        block_until(lambda: get(f"{self.address}/readyz") == 200)

    def family(self) -> list[psutil.Process]:
        """The worker's processes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)


@contextmanager
def started(*arguments: str) -> Iterator[Server]:
    """A server that answers; stopped at the end, whatever happens."""
    log = Path(f"server-{time.monotonic_ns()}.log")
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*DIFFUSERVE, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    address = process.stdout.readline().strip()  # ends with the process, if it fails
    server = Server(process, address, log)
    try:
        assert address.startswith("http://127.0.0.1:"), server.log
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*DIFFUSERVE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def get(url: str) -> int:
    try:
        return httpx.get(url, timeout=HANG_SECONDS, trust_env=False).status_code
    except httpx.TransportError:
        return 0


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    return invoker(monkeypatch, capsys)


def post(server: Server, prompt: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """Submit a job without a command, which would be a process of its own."""
    body = {"input": {"prompt": prompt}}
    url = f"{server.address}/v1/jobs"
    return httpx.post(url, json=body, headers=headers, timeout=HANG_SECONDS, trust_env=False)


def show(server: Server, job_id: str) -> dict[str, Any]:
    url = f"{server.address}/v1/jobs/{job_id}"
    shown: dict[str, Any] = httpx.get(url, timeout=HANG_SECONDS, trust_env=False).json()
    return shown


def test_serve_generates_submitted_images(invoke: Invoke) -> None:
    """Run the bundled model itself; the other tests use the null engine."""
    with started("serve", "--device", "cpu") as server:
        [model] = httpx.get(f"{server.address}/v1/models", trust_env=False).json()["data"]
        assert model["id"] == "tiny-flux", "known before anything is loaded"
        assert model["status"] in ("loading", "ready")
        wanted = ["a red circle", "--size", "64x64", "--steps", "2", "-o", "circle.webp"]
        done = invoke("submit", *wanted, "--server", server.address)
        assert done.code == 0, done.err + server.log
        assert done.err.count("has learned images of 96 to 256 pixels a side") == 1, "foreseen, and not again"
        assert "loading tiny-flux … starting" in server.log
        block_until(lambda: "tiny-flux is ready at " in server.log)
        block_until(lambda: get(f"{server.address}/readyz") == 200)  # which looks once a second
        kept = [Path("data"), *Path("data").rglob("*")]
        assert [path for path in kept if path.stat().st_mode & 0o077] == []
        assert any(path.suffix == ".webp" for path in kept)
        assert done.out.split() == ["circle.webp"]
        with Image.open("circle.webp") as image:
            assert (image.size, image.format) == ((64, 64), "WEBP")
        listed = invoke("jobs", "list", "--server", server.address)
        assert "succeeded" in listed.out
        assert "a red circle" in listed.out
        check_load(invoke, server.address)
        assert server.stop() == 0, server.log
    assert "Traceback" not in server.log


def check_load(invoke: Invoke, address: str) -> None:
    """Put the server under a small load, and read what was measured."""
    load = ["--request-rate", "40", "--request-count", "6", "--slo", "p50<60s", "--base-side", "64"]
    done = invoke("bench", address, *load, "--json", "--html", "load.html", "--records", "load.jsonl")
    assert done.code == 0, done.out + done.err
    [result] = json.loads(done.out)["results"]
    assert (result["request_count"]["avg"], result["error_summary"]) == (6, [])
    assert result["slo"]["is_kept"]
    assert {"queue", "run", "denoise"} <= result["phases"].keys()
    assert len(Path("load.jsonl").read_text().splitlines()) == 6
    page = Path("load.html").read_text().replace(address, "").replace("http://www.w3.org/2000/svg", "")
    assert "<svg" in page
    assert "://" not in page, "it needs no network"
    refused = invoke("bench", address, "--model", "nothing")
    assert (refused.code, "it serves tiny-flux" in refused.err) == (2, True), refused.err


def test_a_killed_server_and_a_killed_worker_are_followed_by_others_that_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIFFUSERVE_LEASE_SECONDS", "3600")  # no lease runs out within this test
    with started("serve", "--engine-command", SLOW_ENGINE) as server:
        server.wait_until_ready()
        job_id = post(server, "a star").json()["id"]
        block_until(lambda: show(server, job_id)["status"] == "running")
        family = server.family()
        assert len(family) >= 2, "an agent and an engine"
        server.process.kill()
        block_until(lambda: not any(map(is_alive, family)))
    with started("serve", "--engine-command", NULL_ENGINE) as server:
        server.wait_until_ready()
        block_until(lambda: show(server, job_id)["status"] == "succeeded")
        agent = psutil.Process(server.process.pid).children()[0]
        agent.kill()
        block_until(lambda: agent.pid not in [process.pid for process in server.family()])
        other_id = post(server, "another star").json()["id"]
        block_until(lambda: show(server, other_id)["status"] == "succeeded")
        assert "the worker ended" in server.log


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_signal_stops_the_server_cleanly_even_with_open_requests() -> None:
    with started("serve", "--engine-command", SLOW_ENGINE, "--drain-seconds", "0.2") as server:
        server.wait_until_ready()
        job_id = post(server, "a star").json()["id"]
        block_until(lambda: show(server, job_id)["status"] == "running")
        family = server.family()
        stop_while_followed(server, job_id, signal.SIGTERM)
        assert not any(map(is_alive, family))
    with closing(sqlite3.connect("data/diffuserve.db")) as database:
        stored = database.execute("SELECT status FROM jobs WHERE id = ?", [job_id]).fetchall()
    assert stored == [("queued",)], "handed back, for the next worker"


def test_a_server_is_stopped_from_another_terminal_once_its_jobs_are_done(invoke: Invoke) -> None:
    assert invoke("stop").code == 1
    with started("serve", "--engine-command", NULL_ENGINE) as server:
        server.wait_until_ready()
        job_id = post(server, "a star").json()["id"]
        block_until(lambda: show(server, job_id)["status"] != "queued")
        stopped = invoke("stop")
        assert (stopped.code, stopped.out) == (0, ""), stopped.err
        assert not any(map(is_alive, server.family()))
    with closing(sqlite3.connect("data/diffuserve.db")) as database:
        stored = database.execute("SELECT status FROM jobs WHERE id = ?", [job_id]).fetchall()
    assert stored == [("succeeded",)]


def test_a_server_that_is_stopped_now_leaves_its_running_jobs_to_the_next_one(invoke: Invoke) -> None:
    with started("serve", "--engine-command", SLOW_ENGINE, "--drain-seconds", "3600") as server:
        server.wait_until_ready()
        job_id = post(server, "a star").json()["id"]
        block_until(lambda: show(server, job_id)["status"] == "running")
        family = server.family()
        assert invoke("stop", "--now").code == 0
        block_until(lambda: not any(map(is_alive, family)))
    with closing(sqlite3.connect("data/diffuserve.db")) as database:
        stored = database.execute("SELECT status FROM jobs WHERE id = ?", [job_id]).fetchall()
    assert stored == [("running",)], "its lease runs out, or the next server takes it back"


def stop_while_followed(server: Server, job_id: str, number: signal.Signals) -> None:
    """Stop a server while a client follows a job."""
    events_url = f"{server.address}/v1/jobs/{job_id}/events"
    with httpx.stream("GET", events_url, timeout=HANG_SECONDS, trust_env=False) as events:
        assert events.status_code == 200
        assert server.stop(number) == 0, server.log
    assert "Traceback" not in server.log


@pytest.mark.alone
def test_the_control_plane_starts_fast_and_without_torch() -> None:
    """Compare its start with that of a process that imports what it needs, in one of three tries."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(blocked_imports()), *sys.path])}
    tries: list[float] = []
    while not any(times < MAX_IMPORT_TIMES for times in tries):
        assert len(tries) < 3, tries
        tries.append(seconds_until_served(environment) / seconds_until_imported())


def blocked_imports() -> Path:
    """Return a folder whose modules keep torch and its kind from being imported."""
    folder = Path("blocked").absolute()
    folder.mkdir()
    for name in ("torch", "diffusers", "transformers"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked')\n", encoding="utf-8")
    return folder


def seconds_until_served(environment: Mapping[str, str]) -> float:
    """Return the seconds from the start of a control plane on the same data to its first response."""
    port, start = free_port(), time.monotonic()
    process = subprocess.Popen([*DIFFUSERVE, "api", "--port", str(port)], env=environment)
    try:
        block_until(lambda: get(f"http://127.0.0.1:{port}/healthz") == 200)
        seconds = time.monotonic() - start
        assert get(f"http://127.0.0.1:{port}/readyz") == 503, "no worker has registered"
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    return seconds


def seconds_until_imported() -> float:
    """Return the seconds that a process takes to import the web framework and the database toolkit."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import fastapi, sqlalchemy, uvicorn"], check=True)
    return time.monotonic() - start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_second_server_on_the_same_data_or_port_is_refused(invoke: Invoke) -> None:
    with started("api") as server:
        other = invoke("api")
        assert other.code == 2
        assert f"process {server.process.pid}" in other.err
        port = server.address.rpartition(":")[2]
        taken = invoke("api", "--data-dir", "other", "--port", port)
        assert taken.code == 2
        assert "in use" in taken.err


def test_without_keys_other_machines_are_served_only_with_no_auth(invoke: Invoke) -> None:
    refused = invoke("api", "--host", "0.0.0.0")
    assert refused.code == 2
    assert "--no-auth" in refused.err
    with started("api", "--host", "0.0.0.0", "--no-auth") as server:
        assert invoke("jobs", "list", "--server", server.address).code == 0


def test_with_keys_every_request_needs_one_even_of_the_servers_own_worker(invoke: Invoke) -> None:
    key = invoke("keys", "create", "--tenant", "studio").out
    with started("serve", "--host", "0.0.0.0", "--engine-command", NULL_ENGINE) as server:
        server.wait_until_ready()
        refused = invoke("submit", "a star", "--server", server.address)
        assert refused.code == 2
        assert "DIFFUSERVE_API_KEY" in refused.err
        assert invoke("submit", "a star", "--server", server.address, "--wait", "--key", key).code == 0
        words = [word for process in server.family() for word in process.cmdline()]
        assert not [word for word in words if "dfs_" in word], "secrets stay off command lines"
        assert server.stop() == 0
    keys = json.loads(invoke("keys", "list", "--json").out)
    assert [(key["role"], key["revoked_at"]) for key in keys] == [("tenant", None)]


def test_remote_workers_connect_with_a_worker_key(invoke: Invoke) -> None:
    key = invoke("keys", "create", "--tenant", "studio").out
    own = invoke("keys", "create", "--role", "worker").out
    with started("api") as server:
        arguments = ["--server", server.address, "--engine-command", NULL_ENGINE, "--label", "zone=a"]
        refused = invoke("worker", *arguments, "--key", key)
        assert refused.code == 2, "a key of a tenant is not valid for a worker"
        environment = {**os.environ, "DIFFUSERVE_API_KEY": own}
        worker = subprocess.Popen([*DIFFUSERVE, "worker", *arguments], env=environment)
        try:
            server.wait_until_ready()
            assert invoke("submit", "a star", "--server", server.address, "--wait", "--key", key).code == 0
            worker.terminate()
            assert worker.wait(HANG_SECONDS) == 0
        finally:
            worker.kill()
            worker.wait()


def test_a_job_can_be_watched_and_canceled_and_ctrl_c_ends_the_server(invoke: Invoke) -> None:
    with started("serve", "--engine-command", SLOW_ENGINE, "--drain-seconds", "0.2") as server:
        server.wait_until_ready()
        waiting = subprocess.Popen(
            [*DIFFUSERVE, "submit", "a star", "--wait", "--server", server.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        jobs = f"{server.address}/v1/jobs"
        block_until(lambda: '"running"' in httpx.get(jobs, trust_env=False).text)
        assert "running" in invoke("jobs", "list", "--server", server.address).out
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=HANG_SECONDS)
        assert waiting.returncode == 130
        assert "jobs cancel" in errors, "the job continues, and this cancels it"
        command = errors.split("`")[1].split()
        assert command[:3] == ["diffuserve", "jobs", "cancel"]
        job_id = command[3]
        assert invoke(*command[1:], "--server", server.address).code == 0
        block_until(lambda: show(server, job_id)["status"] == "canceled")
        shown = invoke("jobs", "show", job_id, "--server", server.address, "--json")
        assert json.loads(shown.out)["status"] == "canceled"
        other = post(server, "another star").json()
        block_until(lambda: show(server, other["id"])["status"] == "running")
        stop_while_followed(server, other["id"], signal.SIGINT)


def test_an_unknown_model_ends_the_server_with_its_error(invoke: Invoke) -> None:
    done = invoke("serve", "--model", "no-such-model")
    assert done.code == 2
    assert "no-such-model" in done.err


def test_a_server_whose_model_cannot_be_loaded_ends_with_the_reason_and_keeps_its_jobs() -> None:
    with started("serve", "--engine-command", f"{NULL_ENGINE} --load-seconds 3600") as server:
        block_until(lambda: post(server, "a star").is_success)
        assert server.stop() == 0
    refusing = f"{NULL_ENGINE} --refuse no-room --load-seconds 0"
    with started("serve", "--engine-command", refusing) as server:
        assert server.process.wait(HANG_SECONDS) == 2
        assert "the engine cannot start: no-room" in server.log
        assert "cannot be served, for the reason above" in server.log
        assert "starting another" not in server.log
        assert "1 queued job waits in " in server.log


@pytest.mark.slow  # what checks a change plays the demo by itself
def test_the_demo_completes_all_its_jobs() -> None:
    done = run("demo", "-o", "demo")
    assert done.returncode == 0, done.stderr
    num_jobs = sum(map(len, SCENES.values()))
    assert f"{num_jobs} of {num_jobs} jobs succeeded" in done.stderr
    assert len(list(Path("demo").glob("??.png"))) == num_jobs - 2
    assert len(list(Path("demo").glob("??.mp4"))) == 2
    assert Path("demo/contact_sheet.png").stat().st_size > 10_000
    pages = [line for line in done.stderr.splitlines() if "/gallery/job_" in line]
    assert len(pages) == num_jobs
    with started("serve", "--no-auth", "--data-dir", "demo/data", "--engine-command", NULL_ENGINE) as server:
        job_id = pages[0].split()[0].rpartition("/")[2]
        assert httpx.get(f"{server.address}/v1/jobs/{job_id}").json()["status"] == "succeeded"

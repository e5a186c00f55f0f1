"""Device-seconds of the workers that denoise, with workers that decode and without; deaths included.

    python -m benchmarks decode-workers                        # the bundled tiny-sd
    python -m benchmarks decode-workers --model /models/wan --frames 17 --kill

A server of its own, first with two workers of the role `all`, then with two that denoise and one that
decodes. With `--kill`, a worker of each role is ended by `kill -9` while it works, and started again.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

_PATIENCE_SECONDS = 600.0
_LEASE = {"DIFFUSERVE_LEASE_SECONDS": "6", "DIFFUSERVE_HEARTBEAT_SECONDS": "1"}


@dataclass(frozen=True)
class Drawn:
    """A finished job: hashes of its files, device-seconds in all and of its last first phase, its log."""

    hashes: tuple[tuple[str, str], ...]
    device_seconds: float
    denoise_seconds: float | None
    events: tuple[str, ...]


@dataclass
class Fleet:
    """The server of a run, and the workers started for it."""

    url: str
    model: str
    environment: dict[str, str]

    def worker(self, role: str, number: int) -> "subprocess.Popen[bytes]":
        """Start a worker in a process group of its own."""
        words = ["worker", "--server", self.url, "--model", self.model, "--role", role, "--device", "cpu"]
        words += ["--image-filter", "none", "--deterministic", "--name", f"{role}-{number}"]
        return subprocess.Popen(
            [sys.executable, "-m", "diffuserve", *words],
            env=self.environment,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def until(self, is_reached: Callable[[httpx.Client], bool]) -> None:
        """Wait until the server shows what is waited for."""
        end = time.monotonic() + _PATIENCE_SECONDS
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while not is_reached(client):
                if time.monotonic() > end:
                    raise TimeoutError(f"not reached within {_PATIENCE_SECONDS:g} s")
                time.sleep(0.2)


@contextmanager
def server(folder: Path, model: str) -> Iterator[Fleet]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, **_LEASE, "OMP_NUM_THREADS": "1"}
    words = ["api", "--no-auth", "--port", str(port), "--data-dir", str(folder)]
    command = [sys.executable, "-m", "diffuserve", *words]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            fleet = Fleet(f"http://127.0.0.1:{port}", model, environment)
            time.sleep(2)
            yield fleet
        finally:
            process.terminate()


def draw(fleet: Fleet, inputs: Sequence[dict[str, Any]], roles: Sequence[str], kills: bool) -> list[Drawn]:
    """Have workers of these roles draw the inputs, and return what came of it."""
    workers = {f"{role}-{number}": fleet.worker(role, number) for number, role in enumerate(roles)}
    try:
        fleet.until(lambda client: len(_ready(client)) == len(workers))
        with httpx.Client(base_url=fleet.url, timeout=30) as client:
            (model,) = {name for worker in _ready(client) for name in worker["models"]}
            jobs = [_submit(client, model, values) for values in inputs]
            for role in dict.fromkeys(roles) if kills else ():
                name = next(name for name in workers if name.startswith(role))
                fleet.until(partial(_is_busy_or_over, name=name, job_ids=jobs))
                os.killpg(workers[name].pid, signal.SIGKILL)
                workers[name].wait()
                workers[name] = fleet.worker(role, int(name.rpartition("-")[2]))
            fleet.until(lambda client: _is_over(client, jobs))
            return [_drawn(client, job_id) for job_id in jobs]
    finally:
        for worker in workers.values():
            os.killpg(worker.pid, signal.SIGTERM)
            worker.wait()


def _ready(client: httpx.Client) -> list[dict[str, Any]]:
    try:
        workers = client.get("/v1/workers").json()["data"]
    except httpx.TransportError:
        return []
    return [worker for worker in workers if worker["state"] in ("ready", "occupied")]


def _is_busy(client: httpx.Client, name: str) -> bool:
    return any(worker["name"] == name and worker["num_leases"] for worker in _ready(client))


def _is_busy_or_over(client: httpx.Client, name: str, job_ids: Sequence[str]) -> bool:
    return _is_busy(client, name) or _is_over(client, job_ids)


def _is_over(client: httpx.Client, job_ids: Sequence[str]) -> bool:
    statuses = {client.get(f"/v1/jobs/{job_id}").json()["status"] for job_id in job_ids}
    return statuses <= {"succeeded", "failed"}


def _submit(client: httpx.Client, model: str, values: dict[str, Any]) -> str:
    kind = "video.generate" if values.get("num_frames", 1) > 1 else "image.generate"
    response = client.post("/v1/jobs", json={"model": model, "kind": kind, "input": values})
    response.raise_for_status()
    return str(response.json()["id"])


def _drawn(client: httpx.Client, job_id: str) -> Drawn:
    job = client.get(f"/v1/jobs/{job_id}").json()
    if job["status"] != "succeeded":
        raise RuntimeError(f"{job_id} {job['status']}: {job['error']}")
    events = _events(client, job_id)
    parts = [data["seconds"] for name, data in events if name == "denoised"]
    result = job["result"]
    return Drawn(
        tuple((file["name"], file["sha256"]) for file in result["artifacts"]),
        result["timings"]["device_seconds"],
        parts[-1] if parts else None,
        tuple(name for name, _ in events),
    )


def _events(client: httpx.Client, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the stored events of a job that is over, from its stream."""
    found, name = [], ""
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        for line in response.iter_lines():
            if line.startswith("event:"):
                name = line.partition(":")[2].strip()
            elif line.startswith("data:"):
                found.append((name, httpx.Response(200, content=line[5:]).json()))
    return [(name, data.get("data", data)) for name, data in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-sd")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--frames", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    inputs: list[dict[str, Any]] = [
        {
            "prompt": "a red circle",
            "seed": seed,
            "width": options.size,
            "height": options.size,
            "num_inference_steps": options.steps,
            "num_frames": options.frames,
        }
        for seed in range(options.jobs)
    ]
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), options.model) as fleet:
        whole = draw(fleet, inputs, ("all", "all"), kills=False)
        parted = draw(fleet, inputs, ("denoise", "denoise", "decode"), kills=options.kill)
    _print(whole, parted)


def _print(whole: Sequence[Drawn], parted: Sequence[Drawn]) -> None:
    before = sum(job.device_seconds for job in whole) / len(whole)
    after = sum(job.denoise_seconds or 0.0 for job in parted) / len(parted)
    print(
        f"device-seconds a job of workers that denoise: {before:.4f} alone, {after:.4f} with decode workers"
    )
    print(f"saved: {1 - after / before:.0%}")
    same = sum(a.hashes == b.hashes for a, b in zip(whole, parted, strict=True))
    print(f"files that are the same to the bit: those of {same} of {len(whole)} jobs")
    denoised = [job.events.count("denoised") for job in parted]
    requeued = sum(job.events.count("requeued") for job in parted)
    print(
        f"jobs denoised more than once: {sum(n > 1 for n in denoised)}; attempts that were lost: {requeued}"
    )


if __name__ == "__main__":
    main()

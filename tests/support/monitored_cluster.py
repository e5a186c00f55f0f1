"""A control plane and workers that draw on the CPU, under load, and a Prometheus that scrapes them."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.diffuserve_process import is_ready
from support.monitoring import prometheus, query
from support.ports import free_port
from support.waiting import HANG_SECONDS, block_until


@dataclass(frozen=True)
class MonitoredCluster:
    """The addresses of a control plane with a worker for each model, and of its Prometheus."""

    address: str
    prometheus: str
    models: Sequence[str]

    def draw(self, num_jobs: int) -> None:
        """Have images drawn, and wait until Prometheus has seen the last of them."""
        before = self._num_drawn()
        for number in range(num_jobs):
            self._submit(self.models[number % len(self.models)], num_inference_steps=4)
        block_until(lambda: self._num_drawn() >= before + num_jobs)

    def keep_busy(self, seconds: float, seed: int = 0) -> None:
        """Send bursts of jobs of all models and priorities, and cancel one now and then."""
        chance, end = random.Random(seed), time.monotonic() + seconds
        while time.monotonic() < end:
            jobs = [self._submit_any(chance) for _ in range(chance.choice((1, 2, 3, 8)))]
            if chance.random() < 0.2:
                self._post(f"/v1/jobs/{jobs[-1]['id']}/cancel")
            time.sleep(chance.uniform(1, 4))

    def _submit_any(self, chance: random.Random) -> dict[str, Any]:
        priority = chance.choice(("interactive", "standard", "batch"))
        return self._submit(chance.choice(self.models), priority, num_inference_steps=chance.choice((4, 20)))

    def _submit(self, model: str, priority: str = "standard", **parameters: int) -> dict[str, Any]:
        body = {"model": model, "priority": priority, "input": {"prompt": "a red circle", **parameters}}
        return self._post("/v1/jobs", body)

    def _post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        response = httpx.post(self.address + path, json=body, timeout=HANG_SECONDS, trust_env=False)
        assert response.is_success or path.endswith("/cancel"), response.text  # it may have ended before
        answer: dict[str, Any] = response.json()
        return answer

    def _num_drawn(self) -> float:
        series = query(self.prometheus, "sum(diffusion_worker_jobs_total) + sum(diffusion_requests_total)")
        return float(series[0]["value"][1]) / 2 if series else 0.0


@contextmanager
def monitored_cluster(
    folder: Path, models: Sequence[str] = ("tiny-flux",), scrape_seconds: int = 1
) -> Iterator[MonitoredCluster]:
    """Run a cluster until the block ends; it begins when a worker is ready and Prometheus scrapes."""
    with ExitStack() as stack:
        api = _start(folder, stack, "api")
        assert api.stdout is not None
        address = api.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), (folder / "api.log").read_text()
        ports = {model: free_port() for model in models}
        for model, port in ports.items():
            options = ("--server", address, "--metrics-port", str(port), "--model", model, "--device", "cpu")
            _start(folder, stack, "worker", *options, name=model)
        block_until(lambda: is_ready(address))
        targets = {"control": [address.removeprefix("http://")]}
        targets["worker"] = [f"127.0.0.1:{port}" for port in ports.values()]
        jobs = [
            {"job_name": f"diffuserve-{name}", "static_configs": [{"targets": of_job}]}
            for name, of_job in targets.items()
        ]
        config = {"global": {"scrape_interval": f"{scrape_seconds}s"}, "scrape_configs": jobs}
        url = stack.enter_context(prometheus(config, free_port(), folder / "prometheus"))
        yield MonitoredCluster(address, url, models)


def _start(
    folder: Path, stack: ExitStack, command: str, *options: str, name: str = ""
) -> "subprocess.Popen[str]":
    name = name or command
    places = {"DATA_DIR": "data", "CACHE_DIR": f"cache-{name}"}
    variables = {f"DIFFUSERVE_{variable}": str(folder / place) for variable, place in places.items()}
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "diffuserve", command, *options],
            env={**os.environ, **variables, "DIFFUSERVE_PORT": "0"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    stack.enter_context(process)
    stack.callback(process.terminate)
    return process

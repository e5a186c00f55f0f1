"""A control plane in a process of its own, for fleets whose workers are processes elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.waiting import HANG_SECONDS

OWN = {"DIFFUSERVE_LEASE_SECONDS": "8", "DIFFUSERVE_HEARTBEAT_SECONDS": "2", "OMP_NUM_THREADS": "1"}


class ControlPlane:
    """A control plane, as its clients see it."""

    def __init__(self, http: httpx.Client) -> None:
        self.url = str(http.base_url)
        self._http = http

    def states(self) -> Mapping[str, str]:
        """Return the states of the workers by name."""
        return {each["name"]: each["state"] for each in self._http.get("/v1/workers").json()["data"]}

    def live(self) -> set[str]:
        return {name for name, state in self.states().items() if state in ("ready", "occupied")}

    def submit(self, count: int, model: str = "null", **values: Any) -> list[str]:
        bodies = [
            {"model": model, "input": {"prompt": f"star {number}", **values}} for number in range(count)
        ]
        return [self._http.post("/v1/jobs", json=body).json()["id"] for body in bodies]

    def jobs(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        return [self._http.get(f"/v1/jobs/{each}").json() for each in ids]

    def statuses(self, ids: Sequence[str]) -> set[str]:
        return {job["status"] for job in self.jobs(ids)}


@contextmanager
def control_plane(folder: Path, **environment: str) -> Iterator[ControlPlane]:
    """Run a control plane, whose data are in this folder, until the block ends."""
    words = ["api", "--port", "0", "--data-dir", str(folder / "data"), "--prompt-filter", "none"]
    with (folder / "api.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "diffuserve", *words],
            env=os.environ | OWN | environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, (folder / "api.log").read_text("utf-8")
        with httpx.Client(base_url=url, trust_env=False, timeout=HANG_SECONDS) as http:
            yield ControlPlane(http)
        process.terminate()
        process.wait(HANG_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

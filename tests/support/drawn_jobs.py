"""Jobs for tests in a browser, submitted to a real server over HTTP."""

import time
from typing import Any, Self

import httpx

from support.waiting import HANG_SECONDS

_SMALL = {"width": 64, "height": 64, "num_inference_steps": 1}


class DrawnJobs:
    """Submits small jobs to a server without keys."""

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=address, trust_env=False, timeout=HANG_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def submit(self, prompt: str, **values: Any) -> str:
        """Queue a job, and return its id."""
        response = self._http.post("/v1/jobs", json={"input": {"prompt": prompt, **_SMALL, **values}})
        return str(response.raise_for_status().json()["id"])

    def draw(self, prompt: str, **values: Any) -> str:
        """Return the id of a job once it is final."""
        job_id = self.submit(prompt, **values)
        while (status := self.get(job_id)["status"]) in ("queued", "running"):
            time.sleep(0.1)
        assert status == "succeeded", status
        return job_id

    def get(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        job: dict[str, Any] = self._http.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return job

    def exists(self, job_id: str) -> bool:
        """Return whether the job is there."""
        return self._http.get(f"/v1/jobs/{job_id}").status_code == 200

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        self._http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()

    def delete(self, job_id: str) -> None:
        """Delete a job."""
        self._http.delete(f"/v1/jobs/{job_id}").raise_for_status()

    def canceled_batch(self, prompt: str, count: int) -> str:
        """Return the id of a batch whose items have ended at once: each is canceled or drawn."""
        items = [{"custom_id": str(number), "input": {"prompt": prompt, **_SMALL}} for number in range(count)]
        batch: dict[str, Any] = (
            self._http.post("/v1/batches", json={"items": items}).raise_for_status().json()
        )
        self._http.post(f"/v1/batches/{batch['id']}/cancel").raise_for_status()
        while self._http.get(f"/v1/batches/{batch['id']}").json()["finished_at"] is None:
            time.sleep(0.1)
        return str(batch["id"])

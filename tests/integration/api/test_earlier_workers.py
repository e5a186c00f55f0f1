"""Today's control plane takes what workers of an earlier version ask, and answers what they read.

The requests were recorded from such workers, with the answers of a control plane of their version, by
scripts/record_worker.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

RECORDED = json.loads(Path(__file__).with_name("recorded").joinpath("earlier_worker.json").read_text("utf-8"))


class Replay:
    """Sends recorded requests, with the ids that today's control plane gives in place of theirs."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._ids: dict[str, str] = {}
        self.jobs: list[str] = []

    async def send(self, recorded: dict[str, Any]) -> Any:
        """Return the answer to a request; before a claim, submit the jobs that it leased."""
        answer = recorded["answer"] or {}
        for lease in answer.get("leases", []):
            if lease["job_id"] not in self._ids:
                self._ids[lease["job_id"]] = await self._submit(lease["input"]["prompt"])
        path = self._renamed(recorded["path"]).replace("wait=25.0", "wait=0")
        content = self._renamed(recorded["content"])
        response = await self._http.request(
            recorded["method"], path, content=content, headers=recorded["headers"]
        )
        assert response.is_success, f"{recorded['method']} {recorded['path']}: {response.text}"
        today = response.json() if recorded["answer"] else {}
        if "worker_id" in answer:
            self._ids[answer["worker_id"]] = today["worker_id"]
        return today

    async def _submit(self, prompt: str) -> str:
        body = {"input": {"prompt": prompt}, "model": "null"}
        job_id = str((await self._http.post("/v1/jobs", json=body)).raise_for_status().json()["id"])
        self.jobs.append(job_id)
        return job_id

    def _renamed(self, text: str) -> str:
        for recorded, today in self._ids.items():
            text = text.replace(recorded, today)
        return text


async def test_an_earlier_worker_is_understood_and_finds_what_it_reads(http: httpx.AsyncClient) -> None:
    replay = Replay(http)
    for recorded in RECORDED:
        today = await replay.send(recorded)
        assert list(missing(recorded["answer"] or {}, today)) == [], f"in the answer to {recorded['path']}"
    statuses = [(await http.get(f"/v1/jobs/{job}")).json()["status"] for job in replay.jobs]
    assert statuses == ["succeeded", "failed", "succeeded", "queued"], "the last one was handed back"


def missing(earlier: Any, today: Any, path: str = "") -> Iterator[str]:
    """Name the fields of an earlier answer that today's lacks."""
    if isinstance(earlier, dict):
        for name, value in earlier.items():
            if not isinstance(today, dict) or name not in today:
                yield f"{path}.{name}"
            else:
                yield from missing(value, today[name], f"{path}.{name}")
    if isinstance(earlier, list):
        for number, value in enumerate(earlier):
            if isinstance(value, dict):  # others are ids of what is so at the moment
                yield from missing(value, today[number], f"{path}.{number}")


def test_every_kind_of_request_was_recorded() -> None:
    paths = [(recorded["method"], recorded["path"].partition("?")[0]) for recorded in RECORDED]
    asked = {f"{method} {path.split('/')[-1]}" for method, path in paths}
    posted = "workers heartbeat claim progress complete fail hand-over release drain"
    assert asked >= {f"POST {name}" for name in posted.split()} | {"GET control", "GET inputs", "GET latents"}

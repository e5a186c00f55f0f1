"""Our own API: a job is submitted, waited for, and its files fetched."""

from datetime import datetime
from typing import Any

from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble
from diffuserve.bench.watching import ServerState

_WAIT = 25
"""Seconds of a long poll, below the usual limits of proxies."""
_KINDS = {LoadKind.IMAGE: "image.generate", LoadKind.CLIP: "video.generate"}
_ROLES = {LoadKind.IMAGE: "image", LoadKind.CLIP: "video"}
_PARTS = ("encode", "denoise", "decode", "filter", "upload")
_FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})


class Diffuserve:
    """Jobs of a diffuserve server."""

    def __init__(self, model: str | None) -> None:
        self._model = model

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        """Submit, wait for the end, fetch every output."""
        job = await http.json("POST", "/v1/jobs", self._body(asked), {"prefer": f"wait={_WAIT}"})
        while job["status"] not in _FINAL:
            job = await http.json("GET", f"/v1/jobs/{job['id']}?wait={_WAIT}")
        if job["status"] != "succeeded":
            raise RequestFault(Trouble.FAILED, (job["error"] or {}).get("code", job["status"]))
        artifacts = [each for each in job["result"]["artifacts"] if each["role"] == _ROLES[asked.kind]]
        # A URL of an artifact is signed: the key stays here.
        outputs = [Output(await http.content(each["url"], has_key=False)) for each in artifacts]
        return Reply(tuple(outputs), _phases(job))

    async def state(self, http: Http) -> ServerState:
        """Return the queue and the batches as operators see them."""
        found = await http.json("GET", "/v1/operations")
        queue = found["queue"]
        return ServerState(found["batch"]["mean_batch_size"], queue["num_ready"], queue["num_running"])

    def _body(self, asked: LoadRequest) -> dict[str, Any]:
        size = {"width": asked.width, "height": asked.height}
        given = {name: value for name, value in size.items() if value is not None}
        options = {"model": self._model, "priority": asked.priority}
        return {
            "kind": _KINDS[asked.kind],
            "input": {"prompt": asked.prompt, **given, **asked.fields},
            **{name: value for name, value in options.items() if value is not None},
        }


def _phases(job: dict[str, Any]) -> dict[str, float]:
    """Return seconds in the queue and at work by the server's clock, and of parts of it by the worker's."""
    created, started, finished = (
        datetime.fromisoformat(job[name]) for name in ("created_at", "started_at", "finished_at")
    )
    timings = job["result"]["timings"]
    return {
        "queue": (started - created).total_seconds(),
        "run": (finished - started).total_seconds(),
        **{part: timings[f"{part}_seconds"] for part in _PARTS if f"{part}_seconds" in timings},
    }

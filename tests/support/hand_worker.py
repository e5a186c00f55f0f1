"""A worker that a test controls: each of its acts is a call of a worker route of a real API."""

import asyncio
import base64
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import httpx
from pydantic import TypeAdapter

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.workers.worker import Lease
from support.waiting import HANG_SECONDS

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""An image of one pixel."""

HAND_SPEC = ModelSpec(
    name="hand",
    family="hand",
    width=64,
    height=64,
    num_inference_steps=4,
    max_sequence_length=32,
    longest_sequence_length=64,
    max_size=256,
    max_pixels=128 * 128,
    max_images=10,
)
_REPORT = {"state": "ready"}
_LEASES = TypeAdapter(list[Lease])


class HandWorker:
    """Offers a model and generates one-pixel images."""

    def __init__(self, http: httpx.AsyncClient, worker_id: str) -> None:
        self.id = worker_id
        self.warnings: Sequence[str] = ()
        """What it says of every result."""
        self._http = http

    @classmethod
    async def register(
        cls,
        http: httpx.AsyncClient,
        specs: Sequence[ModelSpec] = (HAND_SPEC,),
        name: str = "by hand",
        is_spot: bool = False,
    ) -> "HandWorker":
        offers = [{"spec": asdict(spec)} for spec in specs]
        registration = {"models": offers, "report": _REPORT, "name": name, "is_spot": is_spot}
        response = await http.post("/v1/workers", json=registration)
        return cls(http, response.raise_for_status().json()["worker_id"])

    async def beat(self, state: str, **values: Any) -> httpx.Response:
        """Send a heartbeat with this report and without leases."""
        body = {"report": {"state": state, **values}}
        return await self._http.post(f"/v1/workers/{self.id}/heartbeat", json=body)

    async def deregister(self) -> httpx.Response:
        return await self._http.delete(f"/v1/workers/{self.id}")

    async def claim(
        self, num_jobs: int = 1, wait: float = 0.0, claim_id: str | None = None, **values: Any
    ) -> list[Lease]:
        response = await self._http.post(
            f"/v1/workers/{self.id}/claim",
            params={"wait": wait},
            json={"claim_id": claim_id or secrets.token_hex(8), "num_jobs": num_jobs} | values,
            timeout=wait + HANG_SECONDS,
        )
        return _LEASES.validate_python(response.raise_for_status().json()["leases"])

    async def heartbeat(self, *leases: Lease) -> dict[str, Any]:
        held = [{"job_id": lease.job_id, "lease_token": lease.lease_token} for lease in leases]
        response = await self._http.post(
            f"/v1/workers/{self.id}/heartbeat", json={"report": _REPORT, "held": held}
        )
        commands: dict[str, Any] = response.raise_for_status().json()
        return commands

    async def report(
        self, lease: Lease, step: int, total: int, preview: bytes | None = None, image: int = 0
    ) -> httpx.Response:
        """Report a preview and the progress, one after the other as workers do."""
        body: dict[str, Any] = {"phase": "denoise", "step": step, "total": total}
        if preview is not None:
            encoded = base64.b64encode(preview).decode()
            shown = {"preview": encoded, "preview_index": step, "preview_image": image}
            await self._post(lease, "events", body | shown)
        return await self._post(lease, "events", body)

    async def report_all(self, *advanced: tuple[Lease, int], **more: object) -> httpx.Response:
        """Report steps of several jobs, of 4 each."""
        jobs = [
            {
                "job_id": lease.job_id,
                "report": {"lease_token": lease.lease_token, "phase": "denoise", "step": step, "total": 4}
                | more,
            }
            for lease, step in advanced
        ]
        return await self._http.post(f"/v1/workers/{self.id}/progress", json={"jobs": jobs})

    async def upload(self, lease: Lease, name: str, content: bytes = PNG) -> httpx.Response:
        headers = {"lease-token": str(lease.lease_token)}
        path = f"/v1/leases/{lease.job_id}/files/{name}"
        return await self._http.put(path, content=content, headers=headers)

    async def upload_part(self, lease: Lease, number: int, content: bytes) -> httpx.Response:
        """Store a part of a clip that is being drawn."""
        headers = {"lease-token": str(lease.lease_token)}
        path = f"/v1/leases/{lease.job_id}/live/{number}"
        return await self._http.put(path, content=content, headers=headers)

    async def drop_parts(self, lease: Lease) -> httpx.Response:
        """Take back what was stored of the clip."""
        headers = {"lease-token": str(lease.lease_token)}
        return await self._http.delete(f"/v1/leases/{lease.job_id}/live", headers=headers)

    async def complete(self, lease: Lease) -> httpx.Response:
        """Upload the images that the job asks for, and complete it."""
        artifacts = [await self.generate(lease, index) for index in range(lease.input["num_images"])]
        return await self.finish(lease, artifacts)

    async def generate(self, lease: Lease, index: int = 0) -> Mapping[str, Any]:
        """Upload an image, and return its artifact."""
        name = f"{index}.{lease.output_format}"
        stored: dict[str, Any] = (await self.upload(lease, name)).raise_for_status().json()
        seed = lease.input["seed"] + index
        shape = {"content_type": f"image/{lease.output_format}", "width": 1, "height": 1}
        return stored | shape | {"index": index, "seed": seed}

    async def finish(
        self, lease: Lease, artifacts: Sequence[Mapping[str, Any]], contents: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Complete the job with `artifacts`, uploaded, sent along as `contents`, or neither."""
        result = {"artifacts": artifacts, "input": lease.input, "timings": {"denoise": 0.1}}
        result |= {"warnings": self.warnings}
        body = {"result": result, "actual_seconds": 0.1, "contents": contents or {}}
        return await self._post(lease, "complete", body)

    async def fail(self, lease: Lease, code: str = "broken", retryable: bool = False) -> httpx.Response:
        error = {"code": code, "message": f"the engine says {code}", "retryable": retryable}
        return await self._post(lease, "fail", {"error": error})

    async def release(self, lease: Lease, cause: str = "drain") -> httpx.Response:
        return await self._post(lease, "release", {"cause": cause})

    async def work(self) -> None:
        """Complete every job that can be claimed, with its previews, until the task is canceled."""
        while True:
            for lease in await self.claim(num_jobs=8, wait=5.0):
                with suppress(httpx.HTTPStatusError):  # the lease may be lost meanwhile; the others go on
                    await self._complete_with_previews(lease)
            await asyncio.sleep(0)

    async def _complete_with_previews(self, lease: Lease) -> None:
        for index in range(lease.num_previews):
            await self.report(lease, index, lease.num_previews, PNG)
        await self.complete(lease)

    async def _post(self, lease: Lease, what: str, body: Mapping[str, Any]) -> httpx.Response:
        token = {"lease_token": lease.lease_token}
        return await self._http.post(f"/v1/leases/{lease.job_id}/{what}", json=token | dict(body))

"""A server whose worker does what a browser's test says, and the playground's modules for tests."""

import base64
import subprocess
from dataclasses import replace
from typing import Any

import httpx
from playwright.sync_api import Locator, Page

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.tenant import Plan
from diffuserve.domain.workers.worker import Lease
from diffuserve.jobs.store import JobStore
from support.clips import CLIPS
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import png
from support.server_thread import ServerThread
from support.waiting import HANG_SECONDS, block_until

ABLE = replace(
    HAND_SPEC,
    name="able",
    has_guidance=True,
    guidance_scale=2.0,
    has_negative_prompt=True,
    samplers=("euler", "ddim"),
    sampler="euler",
    max_input_images=1,
    has_mask=True,
    has_strength=True,
    has_control_image=True,
    max_adapters=4,
    learned_min_size=64,
    learned_max_size=128,
    example_prompt="a hand that waves",
    example_prompts=("a hand that waves", "a thumb", "a fist"),
)
PLAN = {"page": Plan(name="page", max_queued=3, highest_band=Band.INTERACTIVE)}


class Hand:
    """A server whose worker does what the test says."""

    def __init__(self, server: ServerThread, key: str = "") -> None:
        self.address = server.address
        self._server = server
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=server.address, headers=headers, trust_env=False, timeout=HANG_SECONDS
        )
        self._workers: list[HandWorker] = []
        self.worker = self.register("by hand", ABLE, CLIPS)

    @property
    def store(self) -> JobStore:
        """Job store of the server; `does` awaits its methods."""
        return self._server.store

    def register(self, name: str, *specs: ModelSpec) -> HandWorker:
        """Return another worker that offers these models."""
        self._workers.append(self._server.call(HandWorker.register(self._http, specs, name)))
        return self._workers[-1]

    def submit(self, prompt: str, **fields: Any) -> str:
        """Queue a job, and return its id; `fields` are those of the request, and of its `input`."""
        body = {"model": "able", **fields, "input": {"prompt": prompt, **fields.get("input", {})}}
        response = self.does(self._http.post("/v1/jobs", json=body))
        assert response.is_success, response.text
        return str(response.json()["id"])

    def model(self, name: str) -> dict[str, Any]:
        """Return what clients are told of a model."""
        return dict(self.does(self._http.get(f"/v1/models/{name}")).json())

    def does(self, work: Any) -> Any:
        """Await what the worker does."""
        return self._server.call(work)

    def claim(self, asker: "subprocess.Popen[str] | None" = None) -> Lease:
        """Claim the next job, once there is one, or fail once `asker`, who is to submit it, has ended."""
        leases: list[Lease] = []

        def has_claimed() -> bool:
            has_ended = asker is not None and asker.poll() is not None
            leases[:] = self.does(self.worker.claim(wait=5.0))
            assert leases or not has_ended, asker and asker.stdout and asker.stdout.read()
            return bool(leases)

        block_until(has_claimed)
        return leases[0]

    def complete(self) -> Lease:
        """Claim the next job, and complete it."""
        lease = self.claim()
        self.does(self.worker.complete(lease)).raise_for_status()
        return lease

    def report(self, lease: Lease, step: int, shade: int, image: int = 0) -> str:
        """Report a step with a preview of this gray, and return the preview's URL."""
        preview = png(8, 8, (shade, shade, shade))
        self.does(self.worker.report(lease, step, 4, preview, image)).raise_for_status()
        return f"data:image/png;base64,{base64.b64encode(preview).decode()}"

    def close(self) -> None:
        """Cancel what is queued and let the workers go: the next test begins with its own alone."""
        self.does(self._clear())
        self.disconnect()

    def disconnect(self) -> None:
        """Close the worker's connection."""
        self.does(self._http.aclose())

    async def _clear(self) -> None:
        jobs = (await self._http.get("/v1/jobs", params={"status": ["queued", "running"]})).json()["data"]
        for job in jobs:
            await self._http.post(f"/v1/jobs/{job['id']}/cancel")
        for worker in self._workers:
            await worker.deregister()


def newest(page: Page) -> Locator:
    """Return the card of the newest run."""
    return page.get_by_role("article").first


def generate(page: Page) -> Locator:
    """Press the button, and return the card of the newest run."""
    page.get_by_role("button", name="Generate").click()
    return newest(page)


def call(page: Page, name: str, expression: str, argument: object = None) -> Any:
    """Evaluate an expression with a module of the playground, in the page."""
    script = f"""async (argument) => {{
      const main = document.querySelector("script[type=module]").src;
      const module = await import(new URL("views/playground/{name}.js", main));
      return {expression};
    }}"""
    return page.evaluate(script, argument)

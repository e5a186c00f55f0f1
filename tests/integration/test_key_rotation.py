"""A worker gets a new key while it holds a job, and finishes the job with it."""

from pathlib import Path

import httpx

from diffuserve.cli.servers.server import running_server
from diffuserve.client.api_key import KeyFile
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import JobResult, JobStatus
from diffuserve.domain.tenant import Role
from diffuserve.domain.workers.worker import (
    Completion,
    ModelOffer,
    Registration,
    WorkerReport,
    WorkerState,
)
from diffuserve.settings import Settings
from support.hand_worker import HAND_SPEC
from support.waiting import eventually

OFFERS = (ModelOffer(spec=HAND_SPEC),)


async def test_a_workers_key_is_rotated_while_it_holds_a_job(tmp_path: Path) -> None:
    file = tmp_path / "key"
    settings = Settings(data_dir=tmp_path / "data", port=0, prompt_filter="none")
    async with running_server(settings) as server:
        store = server.plane.store
        old, secret = await store.keys.create(Role.WORKER)
        async with httpx.AsyncClient(base_url=server.address, trust_env=False) as stranger:

            async def is_closed() -> bool:
                return (await stranger.get("/v1/jobs")).status_code == 401

            await eventually(is_closed)  # until then a worker is registered as one without a key
        file.write_text(secret, encoding="utf-8")
        client = LeaseClient(HttpTransport(server.address, auth=KeyFile(file)))
        report = WorkerReport(state=WorkerState.READY)
        registered = await client.register(Registration(models=OFFERS, report=report))
        _, theirs = await store.keys.create(Role.TENANT, tenant_id="ada")
        headers = {"authorization": f"Bearer {theirs}"}
        async with httpx.AsyncClient(base_url=server.address, headers=headers, trust_env=False) as http:
            job = (await http.post("/v1/jobs", json={"input": {"prompt": "a cat"}})).json()
        [lease] = await client.claim(registered.worker_id, Claim(claim_id="c", num_jobs=1), wait=0.0)
        _, new_secret = await store.keys.rotate(old.id, overlap_seconds=0.0)
        file.write_text(new_secret, encoding="utf-8")
        await server.plane.authenticator.invalid_among({old.id})  # as the server itself finds out
        completion = Completion(lease_token=lease.lease_token, result=JobResult(), actual_seconds=1.0)
        assert (await client.complete(job["id"], completion)).status == JobStatus.SUCCEEDED
        await client.close()


async def test_both_keys_are_accepted_until_the_overlap_ends_and_nothing_restarts(tmp_path: Path) -> None:
    """End the overlap by revoking the old key, as one does once its owner has the new one."""
    settings = Settings(data_dir=tmp_path / "data", port=0, prompt_filter="none")
    async with (
        running_server(settings) as server,
        httpx.AsyncClient(base_url=server.address, trust_env=False) as http,
    ):
        keys = server.plane.store.keys
        old, old_secret = await keys.create(Role.TENANT, tenant_id="ada")

        async def status(secret: str) -> int:
            headers = {"authorization": f"Bearer {secret}"}
            return (await http.get("/v1/jobs", headers=headers)).status_code

        assert await status(old_secret) == 200
        _, new_secret = await keys.rotate(old.id, overlap_seconds=3_600.0)
        assert [await status(secret) for secret in (old_secret, new_secret)] == [200, 200]
        await keys.revoke(old.id)

        async def is_refused() -> bool:
            return await status(old_secret) == 401

        await eventually(is_refused)
        assert await status(new_secret) == 200

"""Writes of workers that have lost their leases, sent once more when all is over.

A worker that was suspended mostly tries by itself to report what it had. Whether it does so before it learns
that its lease is lost is chance; these writes are none.
"""

from collections.abc import Mapping, Sequence

import httpx

from benchmarks.chaos.audit import Holding

_PATIENCE_SECONDS = 60.0


async def write_late(url: str, worker_key: str, hurt: Sequence[Holding], tokens: Mapping[str, int]) -> None:
    """Give back jobs by leases that are over. Raise `RuntimeError` if one of these writes is accepted.

    `tokens` are the last ones by job: one that has ended its job by itself, in the moment in which its worker
    was hurt, gets the same response again.
    """
    headers = {"authorization": f"Bearer {worker_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_PATIENCE_SECONDS) as client:
        for lease in hurt:
            path, body = f"/v1/leases/{lease.job_id}/release", {"lease_token": lease.lease_token}
            response = await client.post(path, json=body)
            if response.is_success and tokens.get(lease.job_id) != lease.lease_token:
                raise RuntimeError(f"a lease that was over gave back the job {lease.job_id}: {response.text}")

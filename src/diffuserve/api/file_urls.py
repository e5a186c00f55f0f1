"""URLs that open finished files for a while, without a key."""

from diffuserve.api.signing import Signer
from diffuserve.storage.base import ArtifactStore


class FileUrls:
    """The store's own where it can sign them, else ours."""

    def __init__(self, artifacts: ArtifactStore, signer: Signer) -> None:
        self._artifacts = artifacts
        self._signer = signer

    @property
    def valid_seconds(self) -> float:
        return self._signer.valid_seconds

    async def url(self, job_id: str, lease_token: int, name: str, base_url: str) -> str:
        direct = await self._artifacts.download_url(f"{job_id}/{lease_token}/{name}", self.valid_seconds)
        return direct or base_url + await self._signer.path(job_id, lease_token, name)

"""URLs that open finished files without a key."""

import time
import zlib
from urllib.parse import quote

from diffuserve.api.files.signing import Signer
from diffuserve.storage.base import ArtifactStore


class FileUrls:
    """Under the public base where there is one, else signed for a while: by the store if it can, else by us.

    What is behind the public base is the store's own folder, so its URLs end with the file's key.
    """

    def __init__(self, artifacts: ArtifactStore, signer: Signer, public_base_url: str | None) -> None:
        self._artifacts = artifacts
        self._signer = signer
        self._public_base_url = public_base_url and public_base_url.rstrip("/")

    async def url(self, job_id: str, lease_token: int, name: str, base_url: str) -> str:
        """`base_url` is what this API is reached by."""
        elsewhere = await self.url_elsewhere(job_id, lease_token, name)
        return elsewhere or base_url + await self._signer.path(job_id, lease_token, name)

    async def url_elsewhere(self, job_id: str, lease_token: int, name: str) -> str | None:
        """Where the file is fetched from without us; `None` where it comes through us."""
        key = f"{job_id}/{lease_token}/{name}"
        if self._public_base_url:
            return f"{self._public_base_url}/{quote(key)}"
        return await self._artifacts.download_url(key, self._signer.valid_seconds)

    def tag(self) -> str:
        """Changes before the URLs given out open nothing any more."""
        if self._public_base_url:
            return f"{zlib.crc32(self._public_base_url.encode()):x}"
        return str(int(time.time() // (self._signer.valid_seconds / 2)))

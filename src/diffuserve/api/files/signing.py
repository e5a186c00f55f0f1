"""Signed URLs that open a file for a limited time without a key."""

import hashlib
import hmac
import time
from urllib.parse import quote

from diffuserve.domain.errors import Forbidden
from diffuserve.jobs.store import JobStore


class UrlSigner:
    """Signs job, lease token, name and expiry by HMAC-SHA256, with a secret that all replicas share."""

    def __init__(self, store: JobStore, valid_seconds: float) -> None:
        self._store = store
        self.valid_seconds = valid_seconds
        self._secret = b""

    async def path(self, job_id: str, lease_token: int, name: str) -> str:
        """Return path and query of a URL that opens the file from now on."""
        expires = int(time.time() + self.valid_seconds)
        signature = await self._signature(job_id, lease_token, name, expires)
        return f"/files/{job_id}/{lease_token}/{quote(name)}?expires={expires}&signature={signature}"

    async def check(self, job_id: str, lease_token: int, name: str, expires: int, signature: str) -> None:
        """Raise `Forbidden` if the signature is invalid or the URL has expired."""
        expected = await self._signature(job_id, lease_token, name, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            raise Forbidden("invalid signature; get the job for a valid URL")
        if expires < time.time():
            raise Forbidden("this URL has expired; get the job again for a new one")

    async def _signature(self, job_id: str, lease_token: int, name: str, expires: int) -> str:
        if not self._secret:
            self._secret = await self._store.keys.signing_secret()
        message = f"{job_id}/{lease_token}/{name}?{expires}"
        return hmac.new(self._secret, message.encode(), hashlib.sha256).hexdigest()

"""Signed URLs that open a file for a limited time without a key."""

import time
from urllib.parse import quote

from diffuserve.api.auth.signatures import Signatures
from diffuserve.domain.errors import Forbidden


class UrlSigner:
    """Signs job, lease token, name and expiry, with a secret that all replicas share."""

    def __init__(self, signatures: Signatures, valid_seconds: float) -> None:
        self.valid_seconds = valid_seconds
        self._signatures = signatures

    async def path(self, job_id: str, lease_token: int, name: str, sha256: str = "") -> str:
        """Return path and query of a URL that opens the file from now on.

        It says which `sha256` the content has, so that it is served with that tag without a database.
        """
        expires = int(time.time() + self.valid_seconds)
        signature = await self._signatures.sign(_message(job_id, lease_token, name, expires, sha256))
        query = f"expires={expires}&signature={signature}" + (f"&sha256={sha256}" if sha256 else "")
        return f"/files/{job_id}/{lease_token}/{quote(name)}?{query}"

    async def check(
        self, job_id: str, lease_token: int, name: str, expires: int, signature: str, sha256: str = ""
    ) -> None:
        """Raise `Forbidden` if the signature is invalid or the URL has expired."""
        message = _message(job_id, lease_token, name, expires, sha256)
        if not await self._signatures.is_valid(message, signature):
            raise Forbidden("invalid signature; get the job for a valid URL")
        if expires < time.time():
            raise Forbidden("this URL has expired; get the job again for a new one")


def _message(job_id: str, lease_token: int, name: str, expires: int, sha256: str) -> str:
    return f"{job_id}/{lease_token}/{name}?{expires}" + (f"&{sha256}" if sha256 else "")

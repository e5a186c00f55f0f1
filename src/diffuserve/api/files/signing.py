"""Signed URLs that open a file for a limited time without a key."""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from time import monotonic
from urllib.parse import quote

from diffuserve.domain.errors import Forbidden, ServerUnavailable
from diffuserve.jobs.store import JobStore

log = logging.getLogger(__name__)

_CACHE_SECONDS = 5.0
_RECHECK_SECONDS = 0.5  # between the reads that invalid signatures cause
_READ_SECONDS = 2.0  # after which files are served by the secrets known so far


class UrlSigner:
    """Signs job, lease token, name and expiry by HMAC-SHA256, with a secret that all replicas share.

    The newest secret signs, and each valid one is accepted. A rotation takes effect within seconds.
    """

    def __init__(self, store: JobStore, valid_seconds: float) -> None:
        self._store = store
        self.valid_seconds = valid_seconds
        self._secrets: Sequence[bytes] = ()
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    async def path(self, job_id: str, lease_token: int, name: str, sha256: str = "") -> str:
        """Return path and query of a URL that opens the file from now on.

        It says which `sha256` the content has, so that it is served with that tag without a database.
        """
        expires = int(time.time() + self.valid_seconds)
        newest = (await self._valid_secrets(_CACHE_SECONDS))[0]
        signature = _signature(newest, _message(job_id, lease_token, name, expires, sha256))
        query = f"expires={expires}&signature={signature}" + (f"&sha256={sha256}" if sha256 else "")
        return f"/files/{job_id}/{lease_token}/{quote(name)}?{query}"

    async def check(
        self, job_id: str, lease_token: int, name: str, expires: int, signature: str, sha256: str = ""
    ) -> None:
        """Raise `Forbidden` if the signature is invalid or the URL has expired."""
        message = _message(job_id, lease_token, name, expires, sha256)
        if not await self._is_valid(message, signature):
            raise Forbidden("invalid signature; get the job for a valid URL")
        if expires < time.time():
            raise Forbidden("this URL has expired; get the job again for a new one")

    async def _is_valid(self, message: str, signature: str) -> bool:
        if _is_signed(message, signature, await self._valid_secrets(_CACHE_SECONDS)):
            return True
        # Another control plane may have learned of a new secret before this one.
        return _is_signed(message, signature, await self._valid_secrets(_RECHECK_SECONDS))

    async def _valid_secrets(self, max_age_seconds: float) -> Sequence[bytes]:
        """Return the secrets, newest first, as they were so long ago at most."""
        async with self._reading:
            if not self._secrets:
                self._secrets = await self._store.url_secrets.valid()
                self._read_at = monotonic()
            elif monotonic() - self._read_at >= max_age_seconds:
                await self._read_again()
            return self._secrets

    async def _read_again(self) -> None:
        """Read the secrets; if the database does not respond, go on with those that are known."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                self._secrets = await self._store.url_secrets.valid()
        except (ServerUnavailable, TimeoutError):
            log.warning("the secrets that sign URLs cannot be read; those known so far stay valid")
        self._read_at = monotonic()


def _message(job_id: str, lease_token: int, name: str, expires: int, sha256: str) -> str:
    return f"{job_id}/{lease_token}/{name}?{expires}" + (f"&{sha256}" if sha256 else "")


def _is_signed(message: str, signature: str, secrets: Sequence[bytes]) -> bool:
    """Return whether one of the secrets gives this signature, in a time that does not depend on which."""
    expected = [_signature(secret, message) for secret in secrets]
    matches = [hmac.compare_digest(right.encode(), signature.encode()) for right in expected]
    return any(matches)


def _signature(secret: bytes, message: str) -> str:
    return hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()

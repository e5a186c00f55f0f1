"""Signatures by HMAC-SHA256, with secrets that all control planes share."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Sequence
from time import monotonic

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.jobs.store import JobStore

log = logging.getLogger(__name__)

_CACHE_SECONDS = 5.0
_RECHECK_SECONDS = 0.5  # between the reads that invalid signatures cause
_READ_SECONDS = 2.0  # after which the secrets known so far serve


class Signatures:
    """Signs messages and checks them. What messages are for must be part of them.

    The newest secret signs, and each valid one is accepted. A rotation takes effect within seconds.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._secrets: Sequence[bytes] = ()
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    async def sign(self, message: str) -> str:
        """Return the signature of a message, by the newest secret."""
        return _signature((await self._valid_secrets(_CACHE_SECONDS))[0], message)

    async def is_valid(self, message: str, signature: str) -> bool:
        """Return whether one of the valid secrets gives this signature."""
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


def _is_signed(message: str, signature: str, secrets: Sequence[bytes]) -> bool:
    """Return whether one of the secrets gives this signature, in a time that does not depend on which."""
    expected = [_signature(secret, message) for secret in secrets]
    matches = [hmac.compare_digest(right.encode(), signature.encode()) for right in expected]
    return any(matches)


def _signature(secret: bytes, message: str) -> str:
    return hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()

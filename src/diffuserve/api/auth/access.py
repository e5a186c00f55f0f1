"""Authentication of API keys, and what their roles permit."""

import asyncio
import hashlib
import logging
import secrets
import time
from dataclasses import dataclass

from cachetools import TTLCache

from diffuserve.domain.errors import Forbidden, ServerUnavailable, Unauthorized
from diffuserve.domain.tenant import DEFAULT_TENANT, OPERATOR_TENANT, ApiKey, Role
from diffuserve.jobs.store import JobStore

log = logging.getLogger(__name__)

_KEY_SECONDS = 5.0
_MAX_KEYS = 10_000
_HAS_KEYS_SECONDS = 0.5
METRICS_ROLES = (Role.MONITOR, Role.OPERATOR)
_MAX_READERS, _READER_SECONDS = 100, 86_400.0
_METRICS_SECONDS = 0.3  # limit of a known metrics reader's wait for the database


@dataclass(frozen=True)
class Caller:
    """Authenticated client. Its jobs are submitted as `tenant_id`.

    `key_id` is that of its key, `""` for a client of an open server, and `None` for a part of the server
    itself.
    """

    tenant_id: str
    roles: frozenset[Role]
    key_id: str | None = None

    @property
    def scope(self) -> str | None:
        """The tenant whose jobs this caller may see, `None` for those of every tenant."""
        return None if Role.OPERATOR in self.roles else self.tenant_id

    def require(self, *roles: Role) -> None:
        """Raise `Forbidden` unless the caller has one of `roles`."""
        if self.roles.isdisjoint(roles):
            wanted = " or ".join(roles)
            raise Forbidden(f"this route requires an API key with the role {wanted}")


ANONYMOUS = Caller(DEFAULT_TENANT, frozenset(Role), "")
"""Caller of an open server, which permits everything."""


class Authenticator:
    """Maps API keys to callers.

    A key is cached for a few seconds, so a revoked key works for that long.
    """

    def __init__(self, store: JobStore, *, without_keys: bool) -> None:
        """Authenticate by the keys of `store`; `without_keys` opens the server, even if there are any."""
        self._store = store
        self._without_keys = without_keys
        self._has_keys = False
        self._next_check_at = 0.0
        self._keys: TTLCache[bytes, ApiKey] = TTLCache(_MAX_KEYS, _KEY_SECONDS)
        self._keys_by_id: TTLCache[str, ApiKey] = TTLCache(_MAX_KEYS, _KEY_SECONDS)
        self._own_callers: dict[bytes, Caller] = {}
        self._readers: TTLCache[bytes, Caller] = TTLCache(_MAX_READERS, _READER_SECONDS)

    async def is_open(self) -> bool:
        """Return whether every request is permitted: by choice, or because there has never been a key."""
        return self._without_keys or not await self._keys_exist()

    async def caller(self, secret: str | None) -> Caller:
        """Return the caller with this key, `ANONYMOUS` on an open server. Raise `Unauthorized`."""
        if await self.is_open():
            return ANONYMOUS
        if not secret:
            raise Unauthorized("missing API key; send Authorization: Bearer KEY")
        digest = _digest(secret)
        if own := self._own_callers.get(digest):
            return own
        return _caller(await self._key(secret, digest))

    async def metrics_reader(self, secret: str | None) -> Caller:
        """Return the caller with this key, who may be allowed to read the metrics.

        While the database does not respond, a caller accepted within the last day is accepted again, since
        outages are observed by metrics. Raise as `caller` does.
        """
        digest = _digest(secret or "")
        try:
            async with asyncio.timeout(_METRICS_SECONDS if digest in self._readers else None):
                caller = await self.caller(secret)
        except (TimeoutError, ServerUnavailable):
            if digest in self._readers:
                return self._readers[digest]
            raise
        except Unauthorized:
            self._readers.pop(digest, None)
            raise
        if not caller.roles.isdisjoint(METRICS_ROLES):
            self._readers[digest] = caller
        return caller

    async def caller_of(self, key_id: str) -> Caller:
        """Return the caller with the key of this id. Raise `Unauthorized` if it is not valid any more."""
        key = self._keys_by_id.get(key_id)
        if key is None:
            key = self._keys_by_id[key_id] = await self._store.keys.valid_key(key_id)
        return _caller(key)

    def admit(self, role: Role) -> str:
        """Return a new secret with this role, for a part of the server itself.

        It is valid as long as this process, and stored nowhere: a stored key would close an open server.
        """
        secret = secrets.token_urlsafe(32)
        self._own_callers[_digest(secret)] = Caller(DEFAULT_TENANT, frozenset({role}))
        return secret

    async def invalid_among(self, key_ids: set[str]) -> set[str]:
        """Return those `key_id`s of callers that would be refused now."""
        if not key_ids or await self.is_open():
            return set()
        invalid = key_ids - await self._store.keys.valid_among(key_ids)
        if invalid:
            for digest in [digest for digest, key in self._keys.items() if key.id in invalid]:
                del self._keys[digest]
            for key_id in invalid:
                self._keys_by_id.pop(key_id, None)
        return invalid

    async def _keys_exist(self) -> bool:
        """Return whether there is a key or was one; asked of the store until there is."""
        if not self._has_keys and time.monotonic() >= self._next_check_at:
            self._has_keys = await self._store.keys.has_key()
            if self._has_keys and self._next_check_at:
                log.warning("the first API key was created: requests without a key are refused from now on")
            self._next_check_at = time.monotonic() + _HAS_KEYS_SECONDS
        return self._has_keys

    async def _key(self, secret: str, digest: bytes) -> ApiKey:
        key = self._keys.get(digest)
        if key is None:
            key = self._keys[digest] = await self._store.keys.authenticate(secret)
        return key


def _caller(key: ApiKey) -> Caller:
    return Caller(tenant_of(key), frozenset({key.role}), key.id)


def tenant_of(key: ApiKey) -> str:
    """Return the tenant as which the key's owner submits jobs."""
    return OPERATOR_TENANT if key.role is Role.OPERATOR else key.tenant_id or DEFAULT_TENANT


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()

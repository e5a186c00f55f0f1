"""Authentication of API keys, and what their roles permit."""

import hashlib
import time
from dataclasses import dataclass

from cachetools import TTLCache

from diffuserve.domain.errors import Forbidden, Unauthorized
from diffuserve.domain.tenant import ApiKey, Role
from diffuserve.jobs.store import JobStore

DEFAULT_TENANT = "default"
_KEY_SECONDS = 5.0
_MAX_KEYS = 10_000
_HAS_KEYS_SECONDS = 0.5


@dataclass(frozen=True)
class Caller:
    """Authenticated client. Its jobs are submitted as `tenant_id`."""

    tenant_id: str
    roles: frozenset[Role]

    @property
    def scope(self) -> str | None:
        """The tenant whose jobs this caller may see, `None` for those of every tenant."""
        return None if Role.OPERATOR in self.roles else self.tenant_id

    def require(self, *roles: Role) -> None:
        """Raise `Forbidden` unless the caller has one of `roles`."""
        if self.roles.isdisjoint(roles):
            wanted = " or ".join(roles)
            raise Forbidden(f"this route requires an API key with the role {wanted}")


ANONYMOUS = Caller(DEFAULT_TENANT, frozenset(Role))
"""Caller of a server without keys, which permits everything."""


class Authenticator:
    """Maps API keys to callers.

    A key is cached for a few seconds, so a revoked key works for that long.
    """

    def __init__(self, store: JobStore, is_open: bool) -> None:
        self._store = store
        self._is_open = is_open
        self._has_keys = False
        self._next_check_at = 0.0
        self._keys: TTLCache[bytes, ApiKey] = TTLCache(_MAX_KEYS, _KEY_SECONDS)

    async def caller(self, secret: str | None) -> Caller:
        """Return the caller whose key has this secret. Raise `Unauthorized`.

        While the server has no keys every caller is `ANONYMOUS`.
        """
        if self._is_open or not await self._keys_exist():
            return ANONYMOUS
        if not secret:
            raise Unauthorized("missing API key; send Authorization: Bearer KEY")
        key = await self._key(secret)
        return Caller(key.tenant_id or DEFAULT_TENANT, frozenset({key.role}))

    async def _keys_exist(self) -> bool:
        """Return whether the server has had a key: revoking the last one must not open it again."""
        if not self._has_keys and time.monotonic() >= self._next_check_at:
            self._has_keys = await self._store.keys.has_valid_key()
            self._next_check_at = time.monotonic() + _HAS_KEYS_SECONDS
        return self._has_keys

    async def _key(self, secret: str) -> ApiKey:
        digest = hashlib.sha256(secret.encode()).digest()
        key = self._keys.get(digest)
        if key is None:
            key = self._keys[digest] = await self._store.keys.authenticate(secret)
        return key

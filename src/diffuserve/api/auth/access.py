"""Who calls, and which doors that opens."""

import hashlib
import time
from dataclasses import dataclass

from diffuserve.api.cache import Cache
from diffuserve.domain.errors import Forbidden, Unauthorized
from diffuserve.domain.tenant import ApiKey, Role
from diffuserve.jobs.store import JobStore

DEFAULT_TENANT = "default"
_KEY_SECONDS = 5.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Caller:
    """Who asks. Jobs are submitted as `tenant_id`."""

    tenant_id: str
    roles: frozenset[Role]

    @property
    def scope(self) -> str | None:
        """The tenant whose jobs this caller may see, `None` for everyone's."""
        return None if Role.OPERATOR in self.roles else self.tenant_id

    def require(self, *roles: Role) -> None:
        """Raises `Forbidden` unless the caller has one of `roles`."""
        if self.roles.isdisjoint(roles):
            wanted = " or ".join(roles)
            raise Forbidden(f"this route is for keys of the role {wanted}")


ANYONE = Caller(DEFAULT_TENANT, frozenset(Role))


class Gate:
    """Turns secrets into callers.

    What a key opens is remembered for a few seconds, so it takes as long until a revoked one shuts.
    """

    def __init__(self, store: JobStore, is_open: bool) -> None:
        self._store = store
        self._is_open = is_open
        self._has_keys = False
        self._look_at = 0.0
        self._keys: Cache[bytes, ApiKey] = Cache(_KEY_SECONDS)

    async def caller(self, secret: str | None) -> Caller:
        """Raises `Unauthorized`. While there are no keys everyone may do everything."""
        if self._is_open or not await self._keys_exist():
            return ANYONE
        if not secret:
            raise Unauthorized("send a key: Authorization: Bearer KEY")
        key = await self._key(secret)
        return Caller(key.tenant_id or DEFAULT_TENANT, frozenset({key.role}))

    async def _keys_exist(self) -> bool:
        """A server that had a key once stays closed for as long as it runs."""
        if not self._has_keys and time.monotonic() >= self._look_at:
            self._has_keys = await self._store.keys.has_valid_key()
            self._look_at = time.monotonic() + _LOOK_SECONDS
        return self._has_keys

    async def _key(self, secret: str) -> ApiKey:
        digest = hashlib.sha256(secret.encode()).digest()
        key = self._keys.find(digest)
        if key is None:
            key = await self._store.keys.authenticate(secret)
            self._keys.keep(digest, key)
        return key

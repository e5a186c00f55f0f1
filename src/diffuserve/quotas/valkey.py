"""Quotas that several control planes share, by the clock of their Valkey (or Redis)."""

import asyncio
import logging
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from diffuserve.quotas.base import Allowance, Rate
from diffuserve.quotas.local import LocalQuotas

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 0.25
_TRY_EVERY = 1.0

# What `LocalQuotas.take` does, in one round trip. Valkey cuts numbers off where it answers with them.
_TAKE = """
local interval, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local debt = math.max(0, (tonumber(redis.call('GET', KEYS[1])) or 0) - now)
if debt > most then
  return {0, tostring(debt)}
end
debt = debt + interval
redis.call('SET', KEYS[1], string.format('%.6f', now + debt), 'PX', math.ceil(debt * 1000))
return {1, tostring(debt)}
"""


class ValkeyQuotas:
    """While Valkey is away each control plane counts by itself, and one call a second looks for it."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).hostname
        # Its own timeouts may swallow a cancellation before Python 3.12, and a retry would take too long.
        self._client = Redis.from_url(
            url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_connect_timeout=None
        )
        self._script = self._client.register_script(_TAKE)
        self._local = LocalQuotas()
        self._is_away = False
        self._try_at = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def take(self, name: str, rate: Rate) -> Allowance:
        if not self._may_ask():
            return await self._local.take(name, rate)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                allowance = await self._ask(name, rate)
        except (RedisError, OSError) as error:
            self._set_away(True, str(error) or "no answer")
            return await self._local.take(name, rate)
        self._set_away(False)
        return allowance

    async def _ask(self, name: str, rate: Rate) -> Allowance:
        is_granted, debt = await self._script(
            keys=[f"diffuserve:quota:{name}"], args=[repr(rate.interval), repr(rate.granted_up_to)]
        )
        return Allowance(rate, bool(is_granted), float(debt))

    def _may_ask(self) -> bool:
        now = time.monotonic()
        if self._is_away and now < self._try_at:
            return False
        self._try_at = now + _TRY_EVERY
        return True

    def _set_away(self, is_away: bool, reason: str = "") -> None:
        if is_away and not self._is_away:
            log.warning("the quotas at %s are away (%s); counting here alone", self._host, reason)
        elif self._is_away and not is_away:
            log.info("the quotas at %s are back", self._host)
        self._is_away = is_away

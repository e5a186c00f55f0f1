"""Quotas that several control planes share through Valkey (or Redis), by its clock."""

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

_TIMEOUT_SECONDS = 0.25
_RETRY_SECONDS = 1.0

# `LocalQuotas.take` in one round trip. The debt is returned as a string: Valkey would truncate the number.
_TAKE = """
local added, max_debt = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local debt = math.max(0, (tonumber(redis.call('GET', KEYS[1])) or 0) - now)
if debt > max_debt then
  return {0, tostring(debt)}
end
debt = debt + added
if debt == 0 then
  return {1, '0'}
end
redis.call('SET', KEYS[1], string.format('%.6f', now + debt), 'PX', math.ceil(debt * 1000))
return {1, tostring(debt)}
"""


class ValkeyQuotas:
    """Counts in Valkey; while that is unavailable, counts alone and retries once a second."""

    def __init__(self, url: str) -> None:
        """`url` is `redis://…`, `rediss://…` or `valkey://…`."""
        self._host = urlsplit(url).hostname
        # The client's own timeouts may swallow a cancellation before Python 3.12; its retries are too slow.
        self._client = Redis.from_url(
            url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_connect_timeout=None
        )
        self._script = self._client.register_script(_TAKE)
        self._local = LocalQuotas()
        self._is_down = False
        self._retry_at = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def take(self, name: str, rate: Rate, count: int = 1) -> Allowance:
        """Grant a call and count it `count` times, or refuse it; within a quarter of a second."""
        if not self._is_due():
            return await self._local.take(name, rate, count)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                allowance = await self._take_shared(name, rate, count)
        except (RedisError, OSError) as error:
            self._set_down(True, str(error) or "timeout")
            return await self._local.take(name, rate, count)
        self._set_down(False)
        return allowance

    async def _take_shared(self, name: str, rate: Rate, count: int) -> Allowance:
        is_granted, debt = await self._script(
            keys=[f"diffuserve:quota:{name}"], args=[repr(count * rate.interval), repr(rate.max_debt)]
        )
        return Allowance(rate, bool(is_granted), float(debt))

    def _is_due(self) -> bool:
        """Return whether to call Valkey now, and note when to retry if that fails."""
        now = time.monotonic()
        if self._is_down and now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_SECONDS
        return True

    def _set_down(self, is_down: bool, reason: str = "") -> None:
        if is_down and not self._is_down:
            log.warning(
                "the quota server at %s is unavailable (%s); counting locally",
                self._host,
                reason,
            )
        elif self._is_down and not is_down:
            log.info("the quota server at %s is available again", self._host)
        self._is_down = is_down

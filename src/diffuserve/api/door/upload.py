"""Bodies of batches and forms, received completely before any other work, so slow clients block nobody."""

import asyncio
import mmap
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from tempfile import SpooledTemporaryFile
from weakref import WeakValueDictionary

from fastapi import Request
from starlette.exceptions import HTTPException

from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import RateLimited, UploadTooSlow

Body = bytes | mmap.mmap
"""A small body in memory, or a larger one in a file."""

_MAX_IN_MEMORY = 65_536  # bytes
_SLOTS_PER_TENANT = 2
_RETRY_SECONDS = 5.0
_BATCH_REMEDY = "more items fit when they are sent as JSON lines"


class BatchUploads:
    """Limits per tenant: bytes of bodies in transfer, and slots in which they are processed.

    A tenant that uses up its own share slows only itself.
    """

    def __init__(self, config: ApiConfig) -> None:
        self.config = config
        self._num_bytes: Counter[str] = Counter()
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def slot(self, tenant_id: str) -> asyncio.Semaphore:
        """Return the semaphore that at most two batches of a tenant hold at once."""
        # Its holders and waiters keep it alive.
        return self._slots.setdefault(tenant_id, asyncio.Semaphore(_SLOTS_PER_TENANT))

    @asynccontextmanager
    async def received(
        self, request: Request, tenant_id: str, max_bytes: int, remedy: str = _BATCH_REMEDY
    ) -> AsyncIterator[Body]:
        """Receive the body, and hold it within the block: in memory, or in a file that nobody else can open.

        Raise `HTTPException` 413 for more than `max_bytes`, with the remedy, `UploadTooSlow`, and
        `RateLimited` if the tenant has too many bytes of other bodies in transfer.
        """
        with self._account(tenant_id) as account, SpooledTemporaryFile(_MAX_IN_MEMORY) as file:
            async for chunk in _in_time(request, self.config):
                account.add(len(chunk), max_bytes, remedy)
                if account.num_bytes > _MAX_IN_MEMORY:
                    await asyncio.to_thread(file.write, chunk)
                else:
                    file.write(chunk)
            if account.num_bytes <= _MAX_IN_MEMORY:
                file.seek(0)
                yield file.read()
                return
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
                yield body

    @contextmanager
    def _account(self, tenant_id: str) -> Iterator["_Account"]:
        account = _Account(self._num_bytes, tenant_id, self.config.max_tenant_upload_bytes)
        try:
            yield account
        finally:
            account.close()


class _Account:
    """The bytes of one body, counted in the total of its tenant."""

    def __init__(self, totals: Counter[str], tenant_id: str, max_total: int) -> None:
        self.num_bytes = 0
        self._totals = totals
        self._tenant_id = tenant_id
        self._max_total = max_total

    def add(self, num_bytes: int, max_bytes: int, remedy: str) -> None:
        self.num_bytes += num_bytes
        self._totals[self._tenant_id] += num_bytes
        if self.num_bytes > max_bytes:
            raise HTTPException(413, f"the body has more than {max_bytes:,} bytes; {remedy}")
        if self._totals[self._tenant_id] > self._max_total:
            raise RateLimited(
                f"tenant {self._tenant_id!r} has {self._max_total:,} bytes of uploads under way; retry when "
                "one of them is stored",
                retry_after=_RETRY_SECONDS,
            )

    def close(self) -> None:
        self._totals[self._tenant_id] -= self.num_bytes
        if not self._totals[self._tenant_id]:
            del self._totals[self._tenant_id]


async def _in_time(request: Request, config: ApiConfig) -> AsyncIterator[bytes]:
    """Yield the chunks of a body. Raise `UploadTooSlow` if it is below the minimum rate, or too late."""
    chunks, started_at, num_bytes = request.stream(), asyncio.get_running_loop().time(), 0
    while True:
        allowed = config.upload_grace_seconds + num_bytes / config.min_upload_bytes_per_second
        try:
            async with asyncio.timeout_at(started_at + min(allowed, config.upload_seconds)):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise _too_slow(num_bytes, config) from None
        if chunk is None:
            return
        num_bytes += len(chunk)
        yield chunk


def _too_slow(num_bytes: int, config: ApiConfig) -> UploadTooSlow:
    return UploadTooSlow(
        f"only {num_bytes:,} bytes of the body have arrived; send at least "
        f"{config.min_upload_bytes_per_second:,.0f} bytes per second, and all within "
        f"{config.upload_seconds:g} s: a smaller one, perhaps"
    )

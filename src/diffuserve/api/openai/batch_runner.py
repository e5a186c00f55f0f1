"""The task that works at batches from files; any number of control planes share the work."""

import asyncio
import logging

from diffuserve.api.openai.batch_work import BatchWork, BatchWorkParts
from diffuserve.domain.errors import DiffuserveError
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_AT_ONCE = 32  # batches that this process works at, each of another tenant
_LEASE_SECONDS = 30.0  # after which others continue the batches of a process that was killed
_MIN_PAUSE, _MAX_PAUSE = 1.0, 60.0


class FileBatchRunner:
    """Works at one batch of each tenant at a time, so that a tenant with many slows only itself."""

    def __init__(self, parts: BatchWorkParts, lease_seconds: float = _LEASE_SECONDS) -> None:
        self._parts = parts
        self._lease_seconds = lease_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by tenant
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Work until canceled; what was begun is continued later, here or elsewhere."""
        try:
            while True:
                self._ended.clear()
                await self._start_due()
                try:
                    async with asyncio.timeout(self._parts.config.poll_seconds):
                        await self._ended.wait()
                except TimeoutError:
                    pass
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _start_due(self) -> None:
        """Start work at the batches that are due."""
        try:
            due = await self._parts.store.file_batches.find_due(self._tasks, _AT_ONCE)
            for tenant_id, batch_id in due.items():
                if len(self._tasks) < _AT_ONCE:
                    await self._start(tenant_id, batch_id)
        except DiffuserveError as error:
            log.warning("batches from files cannot be read (%s); trying again", error, extra=once_a_minute())
        except Exception:  # without this task, batches would wait until the next start
            log.exception("batches from files cannot be read; trying again")

    async def _start(self, tenant_id: str, batch_id: str) -> None:
        if await self._parts.store.file_batches.take(batch_id, self._lease_seconds):
            task = asyncio.get_running_loop().create_task(self._work(batch_id))
            self._tasks[tenant_id] = task
            task.add_done_callback(lambda _task: self._forget(tenant_id))

    def _forget(self, tenant_id: str) -> None:
        del self._tasks[tenant_id]
        self._ended.set()

    async def _work(self, batch_id: str) -> None:
        pause = 0.0
        try:
            await BatchWork(self._parts, batch_id, self._lease_seconds).run()
        except* DiffuserveError as errors:
            error = errors.exceptions[0]
            pause = min(max(getattr(error, "retry_after", None) or _MIN_PAUSE, _MIN_PAUSE), _MAX_PAUSE)
            log.info("batch %s goes on in %.0f s: %s", batch_id, pause, error)
        except* Exception:
            pause = _MAX_PAUSE
            log.exception("work at batch %s failed; it is tried again in %.0f s", batch_id, pause)
        try:
            await self._parts.store.file_batches.postpone(batch_id, pause)
        except DiffuserveError as error:
            log.warning("batch %s goes on later: %s", batch_id, error)

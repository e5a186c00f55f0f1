"""Work at one batch from a file: its lines are checked, and submitted as jobs, step by step.

Each step begins from what the database says, and repeats nothing that is there: a process that is killed is
followed by another. Files are read as streams.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from diffuserve.api.auth.quota import RequestRates
from diffuserve.api.config import ApiConfig
from diffuserve.api.openai.batch_files import BatchFiles
from diffuserve.api.openai.batch_lines import FileLine, LineChecker, lines_in, request_in
from diffuserve.api.openai.line_jobs import LineJobs
from diffuserve.domain.errors import Conflict, FileNotKnown, TooLarge
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.file_batch import FileBatch, FileBatchStatus, FileError, RefusedLine
from diffuserve.domain.jobs.job import NewJob
from diffuserve.jobs.batches.file_batches import FileBatchEnd
from diffuserve.jobs.batches.store import ITEMS_AT_ONCE
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore, lines_key
from diffuserve.telemetry.metrics import ControlMetrics

_LINES_PER_TURN = 4  # checked before other requests get the event loop
_PREPARED_AT_ONCE = 4  # so that several processes may judge prompts
_MAX_CHUNK_BYTES = 4 << 20  # of lines whose jobs are stored together
_TRIES = 3  # of a chunk one of whose images is deleted meanwhile


@dataclass(frozen=True)
class BatchWorkParts:
    """Parts that batches from files are worked at with."""

    config: ApiConfig
    store: JobStore
    artifacts: ArtifactStore
    rates: RequestRates
    lines: LineJobs
    files: BatchFiles
    metrics: ControlMetrics


@dataclass
class BatchWork:
    """Work at a batch that this process has taken for `lease_seconds`, which it extends as it goes on."""

    parts: BatchWorkParts
    batch_id: str
    lease_seconds: float
    _kept_at: float = 0.0

    async def run(self) -> None:
        """Do step by step what there is to do. Raise the error of what may succeed later."""
        while await self._step(await self.parts.store.file_batches.get(self.batch_id)):
            await self._keep()

    async def _step(self, batch: FileBatch) -> bool:
        """Do the next step; return whether there may be another."""
        if batch.ended_at is not None:
            return False
        if (
            batch.ending is None
            and batch.status is not FileBatchStatus.FINALIZING
            and await self._is_late(batch)
        ):
            await self.parts.store.file_batches.expire(batch.id)
            return True
        match batch.status:
            case FileBatchStatus.VALIDATING:
                return await self._validate(batch)
            case FileBatchStatus.IN_PROGRESS:
                return await self._advance(batch)
            case _:
                ended = await self.parts.files.written(batch, partial(self._lines_of, batch), self._keep)
                return await self._end(batch, ended)

    async def _is_late(self, batch: FileBatch) -> bool:
        return await self.parts.store.database.now() >= batch.expires_at

    async def _end(self, batch: FileBatch, ended: FileBatchEnd) -> bool:
        if not await self.parts.store.file_batches.end(batch.id, ended):
            await self.parts.files.discard(ended)
        return False

    async def _validate(self, batch: FileBatch) -> bool:
        if batch.ending is not None:
            return await self._end(batch, FileBatchEnd(status=FileBatchStatus(batch.ending)))
        if batch.cost_seconds is not None:
            return await self._start(batch, batch.cost_seconds)
        errors = await self._check(batch)
        return await self._fail(batch, errors) if errors else True

    async def _fail(self, batch: FileBatch, errors: Sequence[FileError]) -> bool:
        return await self._end(batch, FileBatchEnd(status=FileBatchStatus.FAILED, errors=errors))

    async def _check(self, batch: FileBatch) -> Sequence[FileError]:
        """Check every line, and note what they are; return why they are no batch, if they are none."""
        checker = LineChecker(batch.endpoint, self.parts.config.max_body_bytes)
        cost_seconds, models = 0.0, set[str]()
        async with aclosing(self._lines_of(batch)) as lines:
            async for line in lines:
                await self._give_way(checker.num_lines)
                request = checker.check(line)
                if checker.is_hopeless:
                    break
                if request is not None and (price := await self.parts.lines.price(batch, request)):
                    cost_seconds += price.cost_seconds
                    models.add(price.model)
        if errors := checker.found():
            return errors
        model = models.pop() if len(models) == 1 else None
        await self.parts.store.file_batches.note_checked(batch.id, checker.num_lines, cost_seconds, model)
        return ()

    async def _start(self, batch: FileBatch, cost_seconds: float) -> bool:
        """Reserve room for all lines. Raise `QueueFull`, `BacklogFull` or `RateLimited` for want of it."""
        new = NewBatch(
            tenant_id=batch.tenant_id,
            num_items=batch.counts.total,
            cost_seconds=cost_seconds,
            metadata=batch.metadata or {},
        )
        try:
            await self.parts.store.batches.find_room(new)
            await self.parts.rates.charge_items(batch.tenant_id, new.num_items)
            await self.parts.store.file_batches.start(batch.id, new)
        except TooLarge as error:
            return await self._fail(batch, [FileError(code=error.code, message=str(error))])
        return True

    async def _advance(self, batch: FileBatch) -> bool:
        file_batches = self.parts.store.file_batches
        if batch.is_over:
            await file_batches.finalize(batch.id)
            return True
        if batch.ending is not None:
            await self.parts.store.batches.cancel_items(batch.id)
            return (await file_batches.get(batch.id)).is_over
        if batch.num_stored < batch.counts.total:
            await self._submit(batch)
            return True
        return False

    async def _submit(self, batch: FileBatch) -> None:
        """Submit the lines that are left, as long as nothing else changes the batch."""
        start, chunk, size = batch.num_stored, list[FileLine](), 0
        async with aclosing(self._lines_of(batch, batch.num_stored)) as lines:
            async for line in lines:
                chunk.append(line)
                size += len(line.content or b"")
                if len(chunk) < ITEMS_AT_ONCE and size < _MAX_CHUNK_BYTES:
                    continue
                if not await self._store(batch, start, chunk):
                    return
                start, chunk, size = start + len(chunk), [], 0
        if chunk:
            await self._store(batch, start, chunk)

    async def _store(self, batch: FileBatch, start: int, chunk: Sequence[FileLine]) -> bool:
        """Store the jobs of some lines; return whether those that follow may be submitted."""
        await self._keep()
        for left in reversed(range(_TRIES)):
            items = await self._items(batch, chunk)
            try:
                end = await self.parts.store.batches.add(batch.id, start, items)
            except FileNotKnown:  # an image was deleted since it was looked up; now its line is refused
                if not left:
                    raise
            except Conflict:  # the batch was stopped
                return False
            else:
                self._count(items)
                return end == start + len(chunk)
        return False

    async def _items(self, batch: FileBatch, chunk: Sequence[FileLine]) -> list[NewJob | RefusedLine]:
        seconds_left = batch.expires_at - await self.parts.store.database.now()
        turns = asyncio.Semaphore(_PREPARED_AT_ONCE)

        async def prepared(line: FileLine) -> NewJob | RefusedLine:
            async with turns:
                await asyncio.sleep(0)
                request = request_in(line, batch.endpoint, self.parts.config.max_body_bytes)
                return await self.parts.lines.job(batch, request, seconds_left)

        async with asyncio.TaskGroup() as tasks:
            preparing = [tasks.create_task(prepared(line)) for line in chunk]
        return [task.result() for task in preparing]

    def _count(self, items: Sequence[NewJob | RefusedLine]) -> None:
        accepted = Counter((item.model, item.band) for item in items if isinstance(item, NewJob))
        for labels, count in accepted.items():
            self.parts.metrics.accepted.labels(*labels).inc(count)

    async def _lines_of(self, batch: FileBatch, first: int = 0) -> AsyncGenerator[FileLine]:
        """Yield the lines of a batch's file from number `first` on, counted from 0."""
        chunks = self.parts.artifacts.read(lines_key(batch.input_file_id))
        number = 0
        async for line in lines_in(chunks, self.parts.config.max_body_bytes):
            if number >= first:
                yield line
            number += 1
            await self._give_way(number)

    async def _give_way(self, number: int) -> None:
        if number % _LINES_PER_TURN == 0:
            await asyncio.sleep(0)
            await self._keep()

    async def _keep(self) -> None:
        """Keep the batch from other processes, long before these may take it."""
        now = time.monotonic()
        if now - self._kept_at > self.lease_seconds / 4:
            self._kept_at = now
            await self.parts.store.file_batches.postpone(self.batch_id, self.lease_seconds)

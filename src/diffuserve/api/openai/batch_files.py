"""The files in which a batch's lines are answered: one of those that succeeded, one of the others."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from diffuserve.api.config import ApiConfig
from diffuserve.api.files.lines_intake import LinesIntake
from diffuserve.api.openai.batch_lines import FileLine, LineRequest, request_in
from diffuserve.api.openai.line_answers import LineAnswer, LineAnswers, error_line
from diffuserve.domain.jobs.file_batch import FileBatch, FileBatchStatus, LineCounts, RefusedLine, TokenCounts
from diffuserve.domain.jobs.input_file import FilePurpose, NewFile
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.jobs.batches.file_batches import FileBatchEnd
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore, input_folder

_LINES_PER_READ = 100
_MAX_BYTES = 1 << 42  # no limit of its own: what is written was drawn within those of the plan

Answer = Job | RefusedLine | None


@dataclass
class _Found:
    """What the first pass over the lines finds out, for the second."""

    succeeded: set[int] = field(default_factory=set)
    unreadable: dict[int, RefusedLine] = field(default_factory=dict)
    total: int = 0
    tokens: TokenCounts = field(default_factory=TokenCounts)


@dataclass(frozen=True)
class BatchFiles:
    """Writes the files of batches."""

    config: ApiConfig
    store: JobStore
    artifacts: ArtifactStore
    intake: LinesIntake
    answers: LineAnswers

    async def written(
        self,
        batch: FileBatch,
        lines: Callable[[], AsyncGenerator[FileLine]],
        keep: Callable[[], Awaitable[None]],
    ) -> FileBatchEnd:
        """Write the files of a batch that is over, and return its end; `lines` reads its file from the start.

        Every line is in one of the two, whatever became of its job. Raise the error of what may succeed
        later.
        """
        found = _Found()
        async with aclosing(lines()) as first:
            output = await self._stored(batch, "output", self._outputs(batch, first, keep, found))
        async with aclosing(lines()) as second:
            error = await self._stored(batch, "error", self._errors(batch, second, keep, found))
        succeeded = len(found.succeeded)
        return FileBatchEnd(
            status=FileBatchStatus(batch.ending or FileBatchStatus.COMPLETED),
            output=output,
            error=error,
            counts=LineCounts(total=found.total, completed=succeeded, failed=found.total - succeeded),
            tokens=found.tokens,
        )

    async def discard(self, ended: FileBatchEnd) -> None:
        """Delete the files of an end that another process has written as well."""
        for file in (ended.output, ended.error):
            if file is not None:
                await self.artifacts.delete(input_folder(file.id))

    async def _stored(self, batch: FileBatch, what: str, lines: AsyncGenerator[bytes]) -> NewFile | None:
        """Store a file of lines; return `None`, and store nothing, if there are none."""
        async with aclosing(lines):
            first = await anext(lines, None)
            if first is None:
                return None
            name = f"{batch.file_batch_id}_{what}.jsonl"
            return await self.intake.stored(
                batch.tenant_id, FilePurpose.BATCH_OUTPUT, name, _all(first, lines), _MAX_BYTES
            )

    async def _outputs(
        self,
        batch: FileBatch,
        lines: AsyncIterator[FileLine],
        keep: Callable[[], Awaitable[None]],
        found: _Found,
    ) -> AsyncGenerator[bytes]:
        async for number, request, answer in self._answered(batch, lines):
            await keep()
            found.total += 1
            if not isinstance(answer, Job) or answer.status is not JobStatus.SUCCEEDED:
                continue
            line = await self.answers.output(batch, number, request, answer)
            if isinstance(line, LineAnswer):
                found.succeeded.add(number)
                found.tokens = found.tokens.plus(line.tokens)
                yield line.text
            else:
                found.unreadable[number] = line

    async def _errors(
        self,
        batch: FileBatch,
        lines: AsyncIterator[FileLine],
        keep: Callable[[], Awaitable[None]],
        found: _Found,
    ) -> AsyncGenerator[bytes]:
        async for number, request, answer in self._answered(batch, lines):
            await keep()
            if number not in found.succeeded:
                told = found.unreadable.get(number, answer)
                yield error_line(batch, number, request.custom_id, told)

    async def _answered(
        self, batch: FileBatch, lines: AsyncIterator[FileLine]
    ) -> AsyncIterator[tuple[int, LineRequest, Answer]]:
        """Yield each line with its number, counted from 0, and what became of it."""
        number = 0
        answers: Mapping[int, Job | RefusedLine] = {}
        async for line in lines:
            if number % _LINES_PER_READ == 0:
                answers = await self.store.file_batches.answers(batch.id, number, number + _LINES_PER_READ)
            request = request_in(line, batch.endpoint, self.config.max_body_bytes)
            yield number, request, answers.get(number)
            number += 1


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in rest:
        yield line

"""Judging of a batch's prompts: some at a time, so that other requests are judged in between."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError

from diffuserve.api.batches.item_parser import BatchItemParser
from diffuserve.api.http.field_errors import MAX_SHOWN_ERRORS, validation_error
from diffuserve.api.submit.screening import PromptScreening, judged_texts
from diffuserve.domain.safety import PASSES, Action, Verdict

_MAX_PROMPTS = 16
_MAX_CHARACTERS = 4_000  # some hundredths of a second: so long another tenant's prompt may have to wait
_NUM_CALLS = 4  # calls of the filter at once, so that several processes may share the work

Prompts = list[tuple[int, str, str]]
"""Prompts and lyrics with the numbers of their items, and the names of their fields."""


async def judge_items(
    screening: PromptScreening, parser: BatchItemParser, start: int
) -> Mapping[int, Verdict]:
    """Judge the items from number `start` on; return the verdicts other than `allow`, by number.

    Raise `RequestValidationError` with the first items that the filter blocks, and `ModerationUnavailable`.
    """
    if screening.prompts.prompt_filter is None:
        return {}
    judging = _Judging(screening, parser, _chunks(parser, start))
    await judging.run()
    if judging.errors:
        first = sorted(judging.errors.items())[:MAX_SHOWN_ERRORS]
        raise RequestValidationError([error for _, error in first])
    return judging.flagged


@dataclass
class _Judging:
    """Verdicts found so far, and the prompts that are left, which several tasks take from."""

    screening: PromptScreening
    parser: BatchItemParser
    chunks: Iterator[Prompts]
    flagged: dict[int, Verdict] = field(default_factory=dict)
    errors: dict[int, Any] = field(default_factory=dict)

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._judge_chunks()) for _ in range(_NUM_CALLS)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _judge_chunks(self) -> None:
        for chunk in self.chunks:
            prompts = [text for _, _, text in chunk]
            verdicts = await self.screening.prompts.moderate_all(prompts, self.parser.tenant_id)
            for (number, name, text), verdict in zip(chunk, verdicts, strict=True):
                await self._note(number, name, text, verdict)
            if len(self.errors) >= MAX_SHOWN_ERRORS:
                return
            await asyncio.sleep(0)

    async def _note(self, number: int, name: str, text: str, verdict: Verdict) -> None:
        if verdict.action is Action.BLOCK:
            await self.screening.note_blocked(self.parser.tenant_id, text, verdict.category)
            location = (*self.parser.request.location(number), "input", name)
            message = f"is blocked by the policy of this server (category {verdict.category!r})"
            [self.errors[number]] = validation_error(location, message).errors()
        elif verdict.action is not Action.ALLOW:
            self.flagged[number] = self.flagged.get(number, PASSES).merge(verdict)


def _chunks(parser: BatchItemParser, start: int) -> Iterator[Prompts]:
    """Yield the prompts that go to the filter together."""
    chunk: Prompts = []
    num_characters = 0
    for number in range(start, len(parser.request.items)):
        for name, text in judged_texts(parser.parse(number)).items():
            if chunk and (len(chunk) == _MAX_PROMPTS or num_characters + len(text) > _MAX_CHARACTERS):
                yield chunk
                chunk, num_characters = [], 0
            chunk.append((number, name, text))
            num_characters += len(text)
    if chunk:
        yield chunk

"""From thousands of items in one call to as many jobs: all are checked before the first is stored."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from diffuserve.api.batches.body import Item, refused
from diffuserve.api.batches.schemas import BatchItem, BatchOptions
from diffuserve.api.schemas import NewJobBody
from diffuserve.api.services import Services
from diffuserve.api.submission import check, judged, recorded
from diffuserve.domain.batch import Batch, NewBatch
from diffuserve.domain.errors import InvalidParams, PromptBlocked
from diffuserve.domain.job import NewJob
from diffuserve.domain.safety import PASSES, Action, Verdict
from diffuserve.domain.tenant import Plan
from diffuserve.domain.webhook import Webhook, WebhookEvent
from diffuserve.jobs.batches.store import ITEMS_AT_ONCE
from diffuserve.jobs.operations import ServedModel

_MAX_SHOWN_ERRORS = 20
_ITEMS_A_TURN = 4  # that are read and judged before others get the event loop


@dataclass
class _Checked:
    """Of all items: what they cost, which were flagged, and the number that first had a `custom_id`."""

    cost_seconds: float = 0.0
    flagged: dict[int, Verdict] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def note(self, place: str, number: int, new: NewJob) -> None:
        """Raises `RequestValidationError` for a `custom_id` that is not the first of its name."""
        first = self.numbers.setdefault(new.custom_id or "", number)
        if first != number:
            raise refused(("body", place, number, "custom_id"), f"is that of number {first} as well")
        self.cost_seconds += new.cost_seconds


@dataclass(frozen=True)
class ItemReader:
    """Turns items into jobs, by what holds for all of a batch. `place` is what errors call them."""

    options: BatchOptions
    served: ServedModel
    plan: Plan
    tenant_id: str
    place: str

    def read(self, number: int, item: Item) -> NewJob:
        """Raises `RequestValidationError`, which names the item."""
        way = ("body", self.place, number)
        try:
            values = orjson.loads(item) if isinstance(item, bytes) else item
            checked = BatchItem.model_validate(values)
            new = check(self._job(checked), self.tenant_id, self.served, self.plan)
        except orjson.JSONDecodeError as error:
            raise refused(way, "is not JSON") from error
        except ValidationError as error:
            problems = [one | {"loc": (*way, *one["loc"])} for one in error.errors(include_url=False)]
            raise RequestValidationError(problems) from error
        except InvalidParams as error:
            raise refused((*way, "input", error.field), error.remedy) from error
        return replace(new, custom_id=checked.custom_id)

    def _job(self, item: BatchItem) -> NewJobBody:
        """What is checked already is not checked again."""
        options = self.options
        return NewJobBody.model_construct(
            input=item.input,
            priority=options.priority,
            expires_in=options.expires_in,
            timeout=options.timeout,
            metadata=item.metadata,
            output_format=options.output_format,
        )


async def take_in(  # noqa: PLR0913 (what a call says, each once)
    services: Services,
    tenant_id: str,
    options: BatchOptions,
    items: Sequence[Item],
    place: str,
    base_url: str,
    idempotency_key: str | None,
) -> Batch:
    """Check all items, then store them, some hundred a transaction.

    Raises `RequestValidationError`, `ModelNotFound`, `BandNotAllowed` and what the store raises.
    """
    served = await services.catalog.pick(options.model)
    plan = await services.catalog.plan(tenant_id)
    reader = ItemReader(options, served, plan, tenant_id, place)
    webhook = _webhook(services, options, base_url)
    checked = await _check_all(services, reader, items)
    new = NewBatch(
        tenant_id=tenant_id,
        num_items=len(items),
        cost_seconds=checked.cost_seconds,
        metadata=options.metadata,
        webhook=webhook,
        idempotency_key=idempotency_key,
        fingerprint=_fingerprint(options, items) if idempotency_key else "",
    )
    batch = await services.store.batches.open(new)
    await _store(services, batch, reader, items, checked.flagged)
    services.metrics.accepted.labels(served.spec.name, options.priority).inc(len(items))
    return await services.store.batches.get(batch.id)


async def _check_all(services: Services, reader: ItemReader, items: Sequence[Item]) -> _Checked:
    """Raises `RequestValidationError` for the first errors that there are, and `ModerationUnavailable`."""
    checked, problems = _Checked(), []
    for start in range(0, len(items), _ITEMS_A_TURN):
        turn = enumerate(items[start : start + _ITEMS_A_TURN], start)
        found = await asyncio.gather(*(_check(services, reader, checked, *one) for one in turn))
        problems += [problem for some in found for problem in some]
        if len(problems) >= _MAX_SHOWN_ERRORS:
            break
        await asyncio.sleep(0)
    if problems:
        raise RequestValidationError(problems[:_MAX_SHOWN_ERRORS])
    return checked


async def _check(
    services: Services, reader: ItemReader, checked: _Checked, number: int, item: Item
) -> Sequence[Any]:
    """What is wrong with the item. Prompts of a turn may be judged elsewhere, all at once."""
    try:
        new = reader.read(number, item)
        checked.note(reader.place, number, new)
        verdict = await judged(services, new.tenant_id, str(new.input["prompt"]))
    except RequestValidationError as error:
        return error.errors()
    except PromptBlocked as error:
        way = ("body", reader.place, number, "input", "prompt")
        return refused(way, f"is blocked by the policy of this server (category {error.category!r})").errors()
    if verdict.action is not Action.ALLOW:
        checked.flagged[number] = verdict
    return ()


async def _store(
    services: Services,
    batch: Batch,
    reader: ItemReader,
    items: Sequence[Item],
    flagged: Mapping[int, Verdict],
) -> None:
    """From where an earlier call was cut off."""

    def job(number: int, item: Item) -> NewJob:
        new = replace(reader.read(number, item), batch_id=batch.id)
        return recorded(services, new, flagged.get(number, PASSES))

    num_stored = batch.num_stored
    while num_stored < len(items):
        chunk = [
            job(number, item)
            async for number, item in _in_turns(items[num_stored : num_stored + ITEMS_AT_ONCE], num_stored)
        ]
        num_stored = await services.store.batches.add(batch.id, num_stored, chunk)


async def _in_turns(items: Sequence[Item], start: int = 0) -> AsyncIterator[tuple[int, Item]]:
    """Numbered from `start`; others get their turn in between."""
    for number, item in enumerate(items, start):
        if number % _ITEMS_A_TURN == 0:
            await asyncio.sleep(0)
        yield number, item


def _webhook(services: Services, options: BatchOptions, base_url: str) -> Webhook | None:
    if options.webhook is None:
        return None
    services.guard.check("webhook.url", options.webhook.url)
    return Webhook(options.webhook.url, (WebhookEvent.BATCH_COMPLETED,), base_url)


def _fingerprint(options: BatchOptions, items: Sequence[Item]) -> str:
    """The same for the same options and items in the same order."""
    digest = hashlib.sha256(options.model_dump_json().encode())
    for item in items:
        digest.update(item if isinstance(item, bytes) else orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
        digest.update(b"\n")
    return digest.hexdigest()

"""Submission of a batch: every item is checked before the first is stored."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from diffuserve.api.batches.body_parser import BatchRequest, Item, nested_errors, validation_error
from diffuserve.api.batches.request_bodies import BatchItem, BatchOptions
from diffuserve.api.request_bodies import NewJobBody
from diffuserve.api.services import Services
from diffuserve.api.submission import build_job, moderate_prompt, with_prompt_record
from diffuserve.domain.batch import Batch, NewBatch
from diffuserve.domain.errors import InvalidParams, PromptBlocked
from diffuserve.domain.job import NewJob
from diffuserve.domain.safety import PASSES, Action, Verdict
from diffuserve.domain.tenant import Plan
from diffuserve.domain.webhook import Webhook, WebhookEvent
from diffuserve.jobs.batches.store import ITEMS_AT_ONCE
from diffuserve.jobs.operations import ServedModel

_MAX_SHOWN_ERRORS = 20
_ITEMS_PER_TURN = 4  # parsed and moderated before other requests get the event loop


@dataclass
class _CheckedItems:
    """Totals over the items checked so far: their price, flagged prompts, and who uses each `custom_id`."""

    cost_seconds: float = 0.0
    flagged: dict[int, Verdict] = field(default_factory=dict)
    number_by_custom_id: dict[str, int] = field(default_factory=dict)

    def add(self, request: BatchRequest, number: int, new: NewJob) -> None:
        """Add an item. Raise `RequestValidationError` if an earlier item has the same `custom_id`."""
        first = self.number_by_custom_id.setdefault(new.custom_id or "", number)
        if first != number:
            location = (*request.location(number), "custom_id")
            raise validation_error(location, f"is also the custom_id of number {first}")
        self.cost_seconds += new.cost_seconds


@dataclass(frozen=True)
class BatchItemParser:
    """Parses the items of one batch into jobs."""

    request: BatchRequest
    served: ServedModel
    plan: Plan
    tenant_id: str

    def parse(self, number: int, item: Item) -> NewJob:
        """Build the job of an item. Raise `RequestValidationError`, which names the item."""
        location = self.request.location(number)
        try:
            values = orjson.loads(item) if isinstance(item, bytes) else item
            checked = BatchItem.model_validate(values)
            new = build_job(self._job_body(checked), self.tenant_id, self.served, self.plan)
        except orjson.JSONDecodeError as error:
            raise validation_error(location, "is not JSON") from error
        except ValidationError as error:
            raise nested_errors(location, error) from error
        except InvalidParams as error:
            raise validation_error((*location, "input", error.field), error.remedy) from error
        return replace(new, custom_id=checked.custom_id)

    def _job_body(self, item: BatchItem) -> NewJobBody:
        """Combine the item and the options, both of which pydantic has validated already."""
        options = self.request.options
        return NewJobBody.model_construct(
            input=item.input,
            priority=options.priority,
            expires_in=options.expires_in,
            timeout=options.timeout,
            metadata=item.metadata,
            output_format=options.output_format,
        )


async def submit_batch(
    services: Services,
    tenant_id: str,
    request: BatchRequest,
    base_url: str,
    idempotency_key: str | None,
) -> Batch:
    """Check all items, then store them in transactions of some hundred.

    Raise `RequestValidationError`, `ModelNotFound`, `BandNotAllowed`, and what the store raises.
    """
    options, items = request.options, request.items
    served = await services.catalog.pick(options.model)
    plan = await services.catalog.plan(tenant_id)
    parser = BatchItemParser(request, served, plan, tenant_id)
    webhook = _webhook(services, options, base_url)
    checked = await _check_items(services, parser)
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
    await _store_items(services, batch, parser, checked.flagged)
    services.metrics.accepted.labels(served.spec.name, options.priority).inc(len(items))
    return await services.store.batches.get(batch.id)


async def _check_items(services: Services, parser: BatchItemParser) -> _CheckedItems:
    """Check every item. Raise `RequestValidationError` with the first errors, and `ModerationUnavailable`."""
    checked, errors = _CheckedItems(), []
    items = parser.request.items
    for start in range(0, len(items), _ITEMS_PER_TURN):
        turn = enumerate(items[start : start + _ITEMS_PER_TURN], start)
        # A moderation service may be remote: the prompts of a turn are sent to it together.
        found = await asyncio.gather(
            *(_check_item(services, parser, checked, number, item) for number, item in turn)
        )
        errors += [error for item_errors in found for error in item_errors]
        if len(errors) >= _MAX_SHOWN_ERRORS:
            break
        await asyncio.sleep(0)
    if errors:
        raise RequestValidationError(errors[:_MAX_SHOWN_ERRORS])
    return checked


async def _check_item(
    services: Services, parser: BatchItemParser, checked: _CheckedItems, number: int, item: Item
) -> Sequence[Any]:
    """Parse and moderate an item; return its errors, `()` for a valid item."""
    try:
        new = parser.parse(number, item)
        checked.add(parser.request, number, new)
        verdict = await moderate_prompt(services, new.tenant_id, str(new.input["prompt"]))
    except RequestValidationError as error:
        return error.errors()
    except PromptBlocked as error:
        location = (*parser.request.location(number), "input", "prompt")
        message = f"is blocked by the policy of this server (category {error.category!r})"
        return validation_error(location, message).errors()
    if verdict.action is not Action.ALLOW:
        checked.flagged[number] = verdict
    return ()


async def _store_items(
    services: Services, batch: Batch, parser: BatchItemParser, flagged: Mapping[int, Verdict]
) -> None:
    """Store the items, continuing where an interrupted submission with the same key stopped."""

    def job(number: int, item: Item) -> NewJob:
        new = replace(parser.parse(number, item), batch_id=batch.id)
        return with_prompt_record(services, new, flagged.get(number, PASSES))

    items, num_stored = parser.request.items, batch.num_stored
    while num_stored < len(items):
        chunk = [
            job(number, item)
            async for number, item in _in_turns(items[num_stored : num_stored + ITEMS_AT_ONCE], num_stored)
        ]
        num_stored = await services.store.batches.add(batch.id, num_stored, chunk)


async def _in_turns(items: Sequence[Item], start: int) -> AsyncIterator[tuple[int, Item]]:
    """Yield the items, numbered from `start`, and give way to other requests in between."""
    for number, item in enumerate(items, start):
        if number % _ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
        yield number, item


def _webhook(services: Services, options: BatchOptions, base_url: str) -> Webhook | None:
    if options.webhook is None:
        return None
    services.address_policy.check("webhook.url", options.webhook.url)
    return Webhook(options.webhook.url, (WebhookEvent.BATCH_COMPLETED,), base_url)


def _fingerprint(options: BatchOptions, items: Sequence[Item]) -> str:
    """Return a hash that is equal for equal options and equal items in the same order."""
    digest = hashlib.sha256(options.model_dump_json().encode())
    for item in items:
        digest.update(item if isinstance(item, bytes) else orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
        digest.update(b"\n")
    return digest.hexdigest()

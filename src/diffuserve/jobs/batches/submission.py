"""Taking batches in: the batch first, then its items, some hundred in a transaction.

An item's id follows from the batch's and its place, and the batch says how many are stored, so that
whoever was cut off goes on where it was and stores nothing twice.
"""

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.batch import NewBatch
from diffuserve.domain.errors import BatchNotFound, Conflict, DiffuserveError
from diffuserve.domain.job import NewJob
from diffuserve.jobs import idempotency, schema
from diffuserve.jobs.admission import Admission, Submission, stamp_of
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.idempotency import Known
from diffuserve.jobs.records import dump
from diffuserve.jobs.webhooks.outbox import dump_webhook

batches = schema.batches

_ID = re.compile(r"batch_([0-9a-f]{20})")


@dataclass(frozen=True)
class Opening:
    """A new batch and the id that it will have."""

    batch_id: str
    new: NewBatch


@dataclass(frozen=True)
class Chunk:
    """Items of a batch from number `start` on."""

    batch_id: str
    start: int
    items: Sequence[NewJob]


def new_batch_id() -> str:
    """Ids sort by time: milliseconds, then chance."""
    return f"batch_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(4)}"


def is_batch_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def item_id(batch_id: str, number: int) -> str:
    """Of the job that item `number`, from 0, becomes; in the items' order."""
    return f"job_{batch_id.removeprefix('batch_')}{number:06x}"


def open_batches(transaction: Transaction, openings: Sequence[Opening]) -> Sequence[str | DiffuserveError]:
    """The batch's id: an earlier one's, where key and body are the same. There must be room for all of it."""
    return [_open(transaction, one) for one in openings]


def add_chunks(transaction: Transaction, chunks: Sequence[Chunk]) -> Sequence[int | DiffuserveError]:
    """How many of the batch's items are stored then. Raises `Conflict` once the batch is canceled."""
    return [_add(transaction, one) for one in chunks]


def _open(transaction: Transaction, opening: Opening) -> str | DiffuserveError:
    new, stamp = opening.new, stamp_of(opening.new)
    earlier = Known(transaction, [] if stamp is None else [stamp]).earlier(stamp)
    if earlier is not None:
        return earlier
    if transaction.is_retry and _find(transaction, opening.batch_id) is not None:
        return opening.batch_id
    books = Admission.open(transaction, {new.tenant_id})
    refusal = books.refusal(new.tenant_id, new.num_items, new.cost_seconds)
    if refusal is not None:
        return refusal
    transaction.execute(sa.insert(batches), _row(opening, transaction.now))
    if stamp is not None:
        idempotency.keep(transaction, [idempotency.row(stamp, opening.batch_id, transaction.now)])
    return opening.batch_id


def _row(opening: Opening, now: float) -> dict[str, Any]:
    new = opening.new
    return {
        "id": opening.batch_id,
        "tenant_id": new.tenant_id,
        "metadata": dump(new.metadata),
        "webhook": None if new.webhook is None else dump_webhook(new.webhook),
        "num_items": new.num_items,
        "created_at": now,
    }


def _add(transaction: Transaction, chunk: Chunk) -> int | DiffuserveError:
    row = _find(transaction, chunk.batch_id)
    if row is None:
        return BatchNotFound(f"no batch {chunk.batch_id}")
    if row.is_canceled:
        return Conflict(f"batch {chunk.batch_id} was canceled while it was taken in")
    if row.num_stored != chunk.start:  # by another call with the same key, or before a lost answer
        return int(row.num_stored)
    books = Admission.open(transaction, {row.tenant_id})
    cost_seconds = sum(item.cost_seconds for item in chunk.items)
    refusal = books.refusal(row.tenant_id, len(chunk.items), cost_seconds)
    if refusal is not None:
        return refusal
    for number, item in enumerate(chunk.items, chunk.start):
        books.accept(Submission(item_id(chunk.batch_id, number), item))
    books.save()
    num_stored = chunk.start + len(chunk.items)
    mine = sa.update(batches).where(batches.c.id == chunk.batch_id)
    transaction.execute(mine.values(num_stored=num_stored))
    return num_stored


def _find(transaction: Transaction, batch_id: str) -> sa.Row[Any] | None:
    return transaction.execute(sa.select(batches).where(batches.c.id == batch_id)).first()

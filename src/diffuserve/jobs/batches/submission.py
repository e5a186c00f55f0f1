"""Submitting batches: the batch first, which reserves room for its items, then the items, some hundred in
a transaction.

An item's id is computed from the batch's id and the item's number, and the batch knows how many items
are stored. So a client or a control plane that was interrupted continues where it was, and stores no
item twice.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import BatchNotFound, Conflict, DiffuserveError
from diffuserve.domain.jobs.batch import NewBatch
from diffuserve.domain.jobs.file_batch import RefusedLine
from diffuserve.domain.jobs.job import NewJob
from diffuserve.domain.text.timed_ids import timed_id
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.files.links import NamedFiles
from diffuserve.jobs.queue import batch_items, idempotency
from diffuserve.jobs.queue.admission import Admission
from diffuserve.jobs.queue.idempotency import UsedKeys, stamp_of
from diffuserve.jobs.records import dump
from diffuserve.jobs.webhooks import outbox

batches, file_batches = schema.batches, schema.file_batches

_ID = re.compile(r"batch_([0-9a-f]{20})")


@dataclass(frozen=True)
class FindRoom(SingleCommand[str | None]):
    """Check whether there is room in the queue for all items of a batch; store nothing.

    The outcome is an earlier batch's id if the idempotency key was used with the same body, `None` if there
    is room, and else the error with which `OpenBatch` would refuse the batch.
    """

    new: NewBatch

    def apply(self, transaction: Transaction) -> str | DiffuserveError | None:
        return _earlier(transaction, self.new) or _refusal(transaction, self.new)


@dataclass(frozen=True)
class OpenBatch(SingleCommand[str]):
    """Store a batch without items, under an id that the caller chose; the outcome is the batch's id.

    It is an earlier batch's id if the idempotency key was used with the same body, and an error unless
    there is room in the queue for all items. The room is reserved for them.
    """

    batch_id: str
    new: NewBatch

    def apply(self, transaction: Transaction) -> str | DiffuserveError:
        earlier = _earlier(transaction, self.new)
        if earlier is not None:
            return earlier
        if transaction.is_retry and _find(transaction, self.batch_id) is not None:
            return self.batch_id
        refusal = _refusal(transaction, self.new)
        if refusal is not None:
            return refusal
        transaction.execute(sa.insert(batches), self._row(transaction.now))
        if (stamp := stamp_of(self.new)) is not None:
            idempotency.keep(transaction, [idempotency.row(stamp, self.batch_id, transaction.now)])
        return self.batch_id

    def _row(self, now: float) -> dict[str, Any]:
        return {
            "id": self.batch_id,
            "tenant_id": self.new.tenant_id,
            "metadata": dump(self.new.metadata),
            "webhook": None if self.new.webhook is None else dump(self.new.webhook),
            "num_items": self.new.num_items,
            "reserved_jobs": self.new.num_items,
            "reserved_seconds": self.new.cost_seconds,
            "stored_at": now,
            "created_at": now,
        }


@dataclass(frozen=True)
class AddBatchItems(SingleCommand[int]):
    """Queue items of a batch from number `start` on; the outcome is how many the batch has then.

    A line of a file that is refused is remembered with its answer, and is no job. Items that do not continue
    the stored ones are not stored. The outcome is `Conflict` once the batch is canceled, and `FileNotKnown`
    if an item names an image that is gone. No item is refused for lack of room, which the batch has reserved.
    """

    batch_id: str
    start: int
    items: Sequence[NewJob | RefusedLine]

    @property
    def jobs(self) -> dict[int, NewJob]:
        """The items that become jobs, by their numbers."""
        numbered = enumerate(self.items, self.start)
        return {number: item for number, item in numbered if isinstance(item, NewJob)}

    def apply(self, transaction: Transaction) -> int | DiffuserveError:
        row = _find(transaction, self.batch_id)
        if row is None:
            return BatchNotFound(f"no batch {self.batch_id}")
        if row.is_canceled:
            return Conflict(f"batch {self.batch_id} was canceled while it was submitted")
        # Another request with the same key has stored these items, or a commit whose result was lost.
        if row.num_stored != self.start:
            return int(row.num_stored)
        new_jobs = self.jobs.values()
        named_files = NamedFiles(transaction, new_jobs)
        refusal = next((error for new in new_jobs if (error := named_files.refusal(new))), None)
        return refusal or self._store(transaction, row)

    def _store(self, transaction: Transaction, row: sa.Row[Any]) -> int:
        admission = Admission.open(transaction, {row.tenant_id})
        for number, new in self.jobs.items():
            admission.admit(item_id(self.batch_id, number), new)
        admission.save()
        self._refuse(transaction)
        num_stored = self.start + len(self.items)
        left = row.reserved_seconds - sum(new.cost_seconds for new in self.jobs.values())
        values = {
            "num_stored": num_stored,
            "reserved_jobs": row.num_items - num_stored,
            "reserved_seconds": max(0.0, left),  # prices may have changed since the batch was opened
            "stored_at": transaction.now,
        }
        transaction.execute(sa.update(batches).where(batches.c.id == self.batch_id).values(values))
        if num_stored == row.num_items:  # the last jobs may have ended before, or nothing become one
            outbox.write(transaction, batch_items.finish(transaction, [self.batch_id]))
        return num_stored

    def _refuse(self, transaction: Transaction) -> None:
        """Remember the answers to the lines that are no jobs."""
        rows = [
            {"batch_id": self.batch_id, "number": number, "status": item.status, "body": dump(item.body)}
            for number, item in enumerate(self.items, self.start)
            if isinstance(item, RefusedLine)
        ]
        if rows:
            transaction.execute(sa.insert(schema.refused_lines), rows)
            more = file_batches.c.num_refused + len(rows)
            is_it = file_batches.c.id == self.batch_id
            transaction.execute(sa.update(file_batches).where(is_it).values(num_refused=more))


def new_batch_id() -> str:
    return timed_id("batch_", 20)


def is_batch_id(text: str) -> bool:
    """Return whether a batch could have this id."""
    return _ID.fullmatch(text) is not None


def item_id(batch_id: str, number: int) -> str:
    """Return the id of the job that is item `number`, from 0; ids sort in the order of the items."""
    return f"job_{batch_id.removeprefix('batch_')}{number:06x}"


def _earlier(transaction: Transaction, new: NewBatch) -> str | DiffuserveError | None:
    """Return the id of the idempotency key's batch; `None` for a new key, or without a key."""
    stamp = stamp_of(new)
    return UsedKeys(transaction, [] if stamp is None else [stamp]).find(stamp)


def _refusal(transaction: Transaction, new: NewBatch) -> DiffuserveError | None:
    admission = Admission.open(transaction, {new.tenant_id})
    return admission.refusal(new.tenant_id, new.num_items, new.cost_seconds)


def _find(transaction: Transaction, batch_id: str) -> sa.Row[Any] | None:
    return transaction.execute(sa.select(batches).where(batches.c.id == batch_id)).first()

"""Orders of models that operators give to workers, and the models that these offer from then on."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DiffuserveError, WorkerNotFound
from diffuserve.domain.workers.model_orders import ModelOrder, check_order
from diffuserve.domain.workers.worker import ModelOffer
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.records import dump
from diffuserve.jobs.workers.kept_orders import order_of, withdraw
from diffuserve.jobs.workers.offers import conflict_of, store_offer
from diffuserve.jobs.workers.registry_bounds import room_for_models
from diffuserve.jobs.workers.reports import report_of

workers = schema.workers


@dataclass(frozen=True)
class PlaceOrder(SingleCommand[None]):
    """Give a worker an order. The outcome is `WorkerNotFound`, or what `check_order` raises."""

    worker_id: str
    order: ModelOrder
    accepts_license: bool = False

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        columns = (workers.c.name, workers.c.report, workers.c.heartbeat_at, workers.c.model_order)
        rows = transaction.rows(sa.select(*columns).where(workers.c.id == self.worker_id))
        if not rows:
            return WorkerNotFound(f"no worker {self.worker_id}")
        [row] = rows
        name = row.name or self.worker_id
        if transaction.now - row.heartbeat_at > transaction.config.lease_seconds:
            return Conflict(f"worker {name} is lost; order the model from one that is there")
        try:
            given, orders = order_of(row.model_order), report_of(row.report).orders
            check_order(name, orders, given, self.order.model, self.accepts_license)
        except DiffuserveError as error:
            return error
        _give(transaction, self.worker_id, dump(self.order))
        return None


@dataclass(frozen=True)
class CancelOrder(SingleCommand[None]):
    """Take an order of a model back, by default a worker's last one: it is neither fetched nor kept.

    The outcome is `WorkerNotFound` for an unknown worker.
    """

    worker_id: str
    model: str | None = None

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        columns = (workers.c.id, workers.c.name, workers.c.model_order, workers.c.orders_to_come)
        rows = transaction.rows(sa.select(*columns).where(workers.c.id == self.worker_id))
        if not rows:
            return WorkerNotFound(f"no worker {self.worker_id}")
        [row] = rows
        given = order_of(row.model_order)
        model = self.model or (None if given is None else given.model)
        if model is not None:
            withdraw(transaction, row, model)
        if given is not None and given.model == model:
            _give(transaction, self.worker_id, None)
        return None


@dataclass(frozen=True)
class OfferMore(SingleCommand[None]):
    """Add models to those that a worker offers.

    The outcome is `WorkerNotFound`, `ModelConflict`, or `ServerUnavailable` while its key has too many.
    """

    worker_id: str
    offers: Sequence[ModelOffer]

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        rows = transaction.rows(sa.select(workers.c.models).where(workers.c.id == self.worker_id))
        if not rows:
            return WorkerNotFound(f"no worker {self.worker_id}; register again")
        if conflict := conflict_of(transaction, self.offers):
            return conflict
        names = dict.fromkeys([*orjson.loads(rows[0].models), *(offer.spec.name for offer in self.offers)])
        if refusal := room_for_models(transaction, self.worker_id, names):
            return refusal
        for offer in self.offers:
            store_offer(transaction, offer)
        changed = sa.update(workers).where(workers.c.id == self.worker_id).values(models=dump(list(names)))
        transaction.execute(changed)
        return None


def _give(transaction: Transaction, worker_id: str, order: str | None) -> None:
    transaction.execute(sa.update(workers).where(workers.c.id == worker_id).values(model_order=order))

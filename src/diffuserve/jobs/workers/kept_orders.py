"""Orders of models that were carried out: a worker of the same name gets them again when it starts anew.

An order is kept once its model was loaded, so that no model that ends its worker is loaded time and again.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.codec import from_json
from diffuserve.domain.workers.model_orders import ModelOrder, OrdersReport, OrderState, is_over
from diffuserve.domain.workers.worker import WorkerReport
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.records import dump
from diffuserve.jobs.workers.reports import report_of

workers, kept = schema.workers, schema.kept_orders

_MAX_NAMES = 1_000
"""Names of workers whose orders are kept; those that were not heard of for longest are forgotten."""

KEPT_FOR = (
    sa.select(kept.c.orders)
    .select_from(workers.outerjoin(kept, kept.c.worker_name == workers.c.name))
    .where(workers.c.id == sa.bindparam("worker"))
)
"""A row for a known worker, with the orders that are kept for its name."""


def order_of(stored: str | None) -> ModelOrder | None:
    """Return the order in a row of `workers`."""
    return None if stored is None else from_json(ModelOrder, stored)


def orders_in(stored: str | None) -> tuple[ModelOrder, ...]:
    """Return the orders in a column that has several."""
    return () if stored is None else from_json(tuple[ModelOrder, ...], stored)


def taken_up(transaction: Transaction, worker_name: str) -> str | None:
    """Return the orders that a worker of this name is given when it registers, as they are stored."""
    renewed = sa.update(kept).where(kept.c.worker_name == worker_name).values(kept_at=transaction.now)
    rows = transaction.rows(renewed.returning(kept.c.orders)) if worker_name else []
    return next((row.orders for row in rows), None)


def told_order(transaction: Transaction, worker: sa.Row[Any], report: WorkerReport) -> ModelOrder | None:
    """Return the order that a worker is told: its own, and once that is over the next one to come."""
    given, orders = order_of(worker.model_order), report.orders
    if orders is None or (given is not None and not is_over(orders.progress, given)):
        return given
    if given is not None and _is_just_loaded(orders, report_of(worker.report).orders):
        keep(transaction, worker.name, given)
    if not (coming := orders_in(worker.orders_to_come)):
        return given
    first, *rest = coming
    stored = {"model_order": dump(first), "orders_to_come": dump(rest)}
    transaction.execute(sa.update(workers).where(workers.c.id == worker.id).values(stored))
    return first


def keep(transaction: Transaction, worker_name: str, order: ModelOrder) -> None:
    """Keep an order for workers of this name, in place of an earlier one of the same model."""
    if not worker_name:
        return
    _store(transaction, worker_name, [*_others(transaction, worker_name, order.model), order])
    newest = sa.select(kept.c.worker_name).order_by(kept.c.kept_at.desc()).limit(_MAX_NAMES)
    transaction.execute(sa.delete(kept).where(kept.c.worker_name.not_in(newest)))


def withdraw(transaction: Transaction, worker: sa.Row[Any], model: str) -> None:
    """Forget the orders of a model, and those that the worker has still to be told."""
    _store(transaction, worker.name, _others(transaction, worker.name, model))
    coming = [each for each in orders_in(worker.orders_to_come) if each.model != model]
    changed = sa.update(workers).where(workers.c.id == worker.id)
    transaction.execute(changed.values(orders_to_come=dump(coming)))


def _others(transaction: Transaction, worker_name: str, model: str) -> list[ModelOrder]:
    """Return the orders of other models that are kept for workers of this name."""
    rows = transaction.rows(sa.select(kept.c.orders).where(kept.c.worker_name == worker_name))
    return [order for row in rows for order in orders_in(row.orders) if order.model != model]


def _is_just_loaded(orders: OrdersReport, earlier: OrdersReport | None) -> bool:
    """Return whether a report is the first that tells that the order's model was loaded."""
    is_loaded = orders.progress is not None and orders.progress.state is OrderState.LOADED
    return is_loaded and (earlier is None or earlier.progress != orders.progress)


def _store(transaction: Transaction, worker_name: str, orders: Sequence[ModelOrder]) -> None:
    if not orders:
        transaction.execute(sa.delete(kept).where(kept.c.worker_name == worker_name))
        return
    row = {"worker_name": worker_name, "orders": dump(list(orders)), "kept_at": transaction.now}
    insert = transaction.upsert(kept)
    changed = {name: insert.excluded[name] for name in ("orders", "kept_at")}
    transaction.execute(insert.on_conflict_do_update(index_elements=["worker_name"], set_=changed), row)

"""The models that workers offer: their specs, which live workers agree on, and their cost fits."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.codec import from_json, from_values
from diffuserve.domain.errors import DiffuserveError, ModelConflict
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.workers.worker import ModelOffer, WorkerRole
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.policy.pricing import MAX_TIMES_DEFAULT, MAX_TIMES_NEUTRAL, NEUTRAL_FIT, bounded
from diffuserve.jobs.records import dump

workers, models = schema.workers, schema.models
_SLOWNESS = "decode_slowness"  # beside the coefficients of a fit
_DESCRIPTIONS = ("encodes_clip", "learned_min_size", "learned_max_size", "example_prompt", "example_prompts")

_SAVE_FIT = (
    sa.update(models)
    .where(models.c.name == sa.bindparam("model"))
    .values(fit=sa.bindparam("new_fit"), updated_at=sa.bindparam("now"))
)


@dataclass(frozen=True)
class OfferModel(SingleCommand[None]):
    """Store a model that a worker is about to offer, so that jobs for it are accepted meanwhile.

    The outcome is `ModelConflict` if live workers offer it with another spec.
    """

    offer: ModelOffer

    def apply(self, transaction: Transaction) -> DiffuserveError | None:
        if conflict := conflict_of(transaction, [self.offer]):
            return conflict
        store_offer(transaction, self.offer)
        return None


def conflict_of(transaction: Transaction, offers: Sequence[ModelOffer]) -> ModelConflict | None:
    """Return an error if a live worker offers one of these models with another spec.

    A worker is live until its leases would have expired, and while it does not drain. Without one the offer
    is an upgrade of the model.
    """
    known = _rows(transaction, [offer.spec.name for offer in offers])
    for offer in offers:
        row = known.get(offer.spec.name)
        if row is not None and (differing := _differences(row.spec, offer.spec)):
            holders = _live_workers(transaction, row.name)
            if holders:
                return _conflict(row.name, differing, holders)
    return None


def store_offer(transaction: Transaction, offer: ModelOffer) -> None:
    """Store a model's spec. Its cost fit is a default, which never replaces one that a worker measured.

    With another spec it is another model, of which nothing was measured.
    """
    spec = offer.spec
    row = _rows(transaction, [spec.name]).get(spec.name)
    is_same = row is not None and not _differences(row.spec, offer.spec)
    default = None if offer.fit is None else _stored_default(offer.fit, spec)
    values = {
        "name": spec.name,
        "spec": dump(spec),
        "fit": row.fit if is_same and row is not None and row.fit else default,
        "updated_at": transaction.now,
    }
    insert = transaction.upsert(models)
    replaced = {name: insert.excluded[name] for name in ("spec", "fit", "updated_at")}
    transaction.execute(insert.on_conflict_do_update(index_elements=["name"], set_=replaced), values)


def save_fits(transaction: Transaction, fits: Iterable[tuple[WorkerRole, Mapping[str, CostFit]]]) -> None:
    """Store what workers of these roles measured of their models, within bounds of the family's default."""
    measured = [(model, role, fit) for role, by_model in fits for model, fit in by_model.items()]
    rows = _rows(transaction, {model for model, _, _ in measured}) if measured else {}
    stored = {name: row.fit for name, row in rows.items()}
    for model, role, fit in measured:
        if model in rows:
            spec = from_json(ModelSpec, rows[model].spec)
            stored[model] = dump(_with_measurement(_loaded(stored[model]), spec, role, fit))
    changed = [
        {"model": model, "new_fit": fit, "now": transaction.now}
        for model, fit in stored.items()
        if fit != rows[model].fit
    ]
    if changed:
        transaction.execute(_SAVE_FIT, changed)


def decode_slowness(transaction: Transaction, names: Collection[str]) -> dict[str, float]:
    """Return how many times as long decode workers take to decode as the model's fit says, where known."""
    known = _rows(transaction, names)
    return {name: slowness for name, row in known.items() if (slowness := _loaded(row.fit).get(_SLOWNESS))}


def load_seconds(transaction: Transaction, names: Collection[str]) -> dict[str, float]:
    """Return the seconds that workers needed to load these models, where they measured it."""
    known = _rows(transaction, names)
    return {name: _loaded(row.fit).get("load_seconds", 0.0) for name, row in known.items()}


def _stored_default(fit: CostFit, spec: ModelSpec) -> str:
    default = asdict(bounded(fit, NEUTRAL_FIT, spec, MAX_TIMES_NEUTRAL))
    return dump({**default, "prior": default})


def _with_measurement(
    stored: Mapping[str, Any], spec: ModelSpec, role: WorkerRole, measured: CostFit
) -> dict[str, Any]:
    """Return a model's stored fit with what a worker of this role measured.

    Of one that only decodes, it keeps how slow that is: jobs are priced by the workers that denoise. A fit
    holds the default that bounds it; the neutral one has none, and bounds the next one.
    """
    before = from_values(CostFit, stored)
    if role is WorkerRole.DECODE:
        return {**stored, _SLOWNESS: _slowness(measured, before)}
    if role is WorkerRole.DENOISE:  # it knows nothing of decoding
        measured = replace(measured, decode=before.decode, later_pixel=before.later_pixel)
    prior = from_values(CostFit, stored.get("prior", stored))
    fit = bounded(measured, prior, spec)
    load_seconds = fit.load_seconds or before.load_seconds  # not every worker measures it
    return {**stored, **asdict(fit), "load_seconds": load_seconds, "prior": asdict(prior)}


def _loaded(text: str | None) -> dict[str, Any]:
    stored: dict[str, Any] = orjson.loads(text) if text else asdict(NEUTRAL_FIT)
    return stored


def _slowness(there: CostFit, here: CostFit) -> float:
    """Return how many times as long a pixel takes to decode there, within bounds."""
    pixel_there, pixel_here = there.decode[1], here.decode[1]
    if pixel_there <= 0 or pixel_here <= 0:
        return 1.0
    return min(max(pixel_there / pixel_here, 1 / MAX_TIMES_DEFAULT), MAX_TIMES_DEFAULT)


def _rows(transaction: Transaction, names: Collection[str]) -> dict[str, sa.Row[Any]]:
    rows = transaction.rows(sa.select(models).where(models.c.name.in_(sorted(names))))
    return {row.name: row for row in rows}


def _differences(stored: str, after: ModelSpec) -> list[str]:
    """Return the fields in which two specs differ; those of other versions do not count.

    Nor do those that only describe a model: versions that know them work beside others.
    """
    before = from_json(ModelSpec, stored)
    names = (field.name for field in fields(ModelSpec) if field.name not in _DESCRIPTIONS)
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _live_workers(transaction: Transaction, model: str) -> list[str]:
    since = transaction.now - transaction.config.lease_seconds
    live = sa.select(workers.c.id, workers.c.models).where(
        workers.c.heartbeat_at >= since, workers.c.is_draining.is_(False)
    )
    return sorted(row.id for row in transaction.rows(live) if model in orjson.loads(row.models))


def _conflict(model: str, differing: Sequence[str], holders: Sequence[str]) -> ModelConflict:
    return ModelConflict(
        f"model {model!r} is offered by {len(holders)} live workers with another {', '.join(differing)} "
        f"({holders[0]} is one); drain them first, or give this model another name"
    )

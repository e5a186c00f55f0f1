"""Handing out jobs: fairest first, several at once, each under a lease of its own."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, WorkerNotFound
from diffuserve.domain.job import Band, JobStatus
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.domain.worker import Claim, Lease
from diffuserve.jobs import queue, schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.due import sweep_due
from diffuserve.jobs.fairness import Lane, TenantAccount, choose_lane
from diffuserve.jobs.records import Change, record_of, save_changes

jobs, leases, ready, lanes, tenants = schema.jobs, schema.leases, schema.ready, schema.lanes, schema.tenants

_HEADS = (
    sa.select(
        *(lanes.c[name] for name in ("lane", "band", "model", "head_seq", "head_at", "head_since")),
        *(tenants.c[name] for name in ("id", "vtime", "plan", "weight", "max_running", "max_queued")),
    )
    .join_from(lanes, tenants, tenants.c.id == lanes.c.tenant_id)
    .where(lanes.c.num_ready > 0)
)
_NEXT = (
    sa.select(*(ready.c[name] for name in ("job_id", "seq", "cost_seconds", "step_tokens", "enqueued_at")))
    .where(ready.c.lane == sa.bindparam("key"), ready.c.seq > sa.bindparam("after"))
    # What is late and not yet swept is no longer to be had.
    .where(sa.or_(ready.c.deadline.is_(None), ready.c.deadline > sa.bindparam("moment")))
    .order_by(ready.c.seq)
    .limit(sa.bindparam("block"))
)
_BANDS = {band.value: band for band in Band}
_LARGEST_BLOCK = 64
_RUNNING = sa.select(leases.c.tenant_id, sa.func.count().label("running")).group_by(leases.c.tenant_id)


@dataclass(frozen=True)
class ClaimBy:
    worker_id: str
    claim: Claim


@dataclass(frozen=True)
class _Grant:
    """A job that was picked for a worker."""

    job_id: str
    by: ClaimBy
    tenant: Tenant
    cost_seconds: float


@dataclass
class ClaimRound:
    """The queue while claims are served from it; `served` is what its transaction has to write."""

    transaction: Transaction
    lanes: list[Lane]
    block: int  # rows of a lane that are read at a time
    heads: dict[str, deque[sa.Row[Any]]] = field(default_factory=dict)
    grants: list[_Grant] = field(default_factory=list)
    floors: dict[tuple[Band, str], float] = field(default_factory=dict)

    def serve(self, by: ClaimBy, models: frozenset[str]) -> None:
        """Pick jobs until the worker's room is full; its first job is never too large."""
        jobs_left, tokens = by.claim.num_jobs, 0
        now, config = self.transaction.now, self.transaction.config
        while jobs_left > 0:
            lane = choose_lane(self.lanes, models, by.claim.resident_models, now, config)
            if lane is None:
                return
            heads = self._heads_of(lane)
            if not heads:
                self.lanes.remove(lane)
                continue
            head = heads[0]
            tokens += head.step_tokens
            limit = by.claim.num_tokens
            if limit is not None and tokens > limit and jobs_left < by.claim.num_jobs:
                return
            self._grant(lane, head, by)
            self._advance(lane)
            jobs_left -= 1

    def _grant(self, lane: Lane, head: sa.Row[Any], by: ClaimBy) -> None:
        group = (lane.band, lane.model)
        self.floors[group] = max(self.floors.get(group, 0.0), lane.account.vtime)
        lane.account.charge(head.cost_seconds)
        self.grants.append(_Grant(head.job_id, by, lane.account.tenant, head.cost_seconds))

    def _advance(self, lane: Lane) -> None:
        heads = self.heads[lane.key]
        last = heads.popleft()
        if not heads:
            heads.extend(self._read(lane.key, last.seq))
        if not heads:
            self.lanes.remove(lane)
            return
        lane.head_seq, lane.head_at = heads[0].seq, heads[0].enqueued_at
        lane.head_since = self.transaction.now

    def _heads_of(self, lane: Lane) -> deque[sa.Row[Any]]:
        if lane.key not in self.heads:
            self.heads[lane.key] = deque(self._read(lane.key, lane.head_seq - 1))
        return self.heads[lane.key]

    def _read(self, key: str, after_seq: int) -> list[sa.Row[Any]]:
        where = {"key": key, "after": after_seq, "block": self.block, "moment": self.transaction.now}
        return list(self.transaction.execute(_NEXT, where).all())


def claim(transaction: Transaction, claims: Sequence[ClaimBy]) -> Sequence[list[Lease] | DiffuserveError]:
    sweep_due(transaction)
    models = _models_served(transaction, {one.worker_id for one in claims})
    granted = _granted_before(transaction, claims)
    largest = max(one.claim.num_jobs for one in claims)
    market = ClaimRound(transaction, _open_lanes(transaction), block=min(largest, _LARGEST_BLOCK) + 1)
    answered = set(granted)
    for one in claims:
        name = (one.worker_id, one.claim.claim_id)
        if one.worker_id in models and name not in answered:
            answered.add(name)
            served = models[one.worker_id]
            market.serve(one, served & frozenset(one.claim.models) if one.claim.models else served)
    for by, lease in _write(transaction, market):
        granted[by.worker_id, by.claim.claim_id].append(lease)
    return [
        granted[one.worker_id, one.claim.claim_id]
        if one.worker_id in models
        else WorkerNotFound(f"no worker {one.worker_id}; register again")
        for one in claims
    ]


def _models_served(transaction: Transaction, worker_ids: set[str]) -> dict[str, frozenset[str]]:
    """By worker; a draining one serves none."""
    table = schema.workers
    rows = transaction.rows(sa.select(table).where(table.c.id.in_(sorted(worker_ids))))
    return {row.id: frozenset(() if row.is_draining else orjson.loads(row.models)) for row in rows}


def _granted_before(
    transaction: Transaction, claims: Sequence[ClaimBy]
) -> dict[tuple[str, str], list[Lease]]:
    """Leases of claims whose answer was lost."""
    rows = transaction.rows(
        sa.select(jobs, leases.c.worker_id.label("holder"), leases.c.claim_id)
        .join_from(leases, jobs, jobs.c.id == leases.c.job_id)
        .where(leases.c.claim_id.in_({one.claim.claim_id for one in claims}))
    )
    granted: dict[tuple[str, str], list[Lease]] = defaultdict(list)
    for row in rows:
        granted[row.holder, row.claim_id].append(_lease(row, row.lease_token, row.attempt, transaction))
    return granted


def _open_lanes(transaction: Transaction) -> list[Lane]:
    running = {row.tenant_id: row.running for row in transaction.rows(_RUNNING)}
    plans: dict[tuple[Any, ...], Plan] = {}
    accounts: dict[str, TenantAccount] = {}
    found = []
    for row in transaction.rows(_HEADS):
        key, band, model, head_seq, head_at, head_since, tenant_id, vtime, *limits = tuple(row)
        account = accounts.get(tenant_id)
        if account is None:
            plan = plans.get(tuple(limits)) or plans.setdefault(
                tuple(limits), queue.plan_of(transaction.config, *limits)
            )
            account = TenantAccount(Tenant(tenant_id, plan), vtime, running.get(tenant_id, 0))
            accounts[tenant_id] = account
        found.append(Lane(key, _BANDS[band], account, model, head_seq, head_at, head_since))
    return found


def _write(transaction: Transaction, market: ClaimRound) -> list[tuple[ClaimBy, Lease]]:
    if not market.grants:
        return []
    ids = [grant.job_id for grant in market.grants]
    rows = {row.id: row for row in transaction.rows(sa.select(jobs).where(jobs.c.id.in_(ids)))}
    ledger, changes, lease_rows, granted = queue.Ledger(), [], [], []
    for grant in market.grants:
        before = record_of(rows[grant.job_id])
        assert before.status is JobStatus.QUEUED, f"{before.id} is ready and {before.status}"
        record = replace(
            before,
            status=JobStatus.RUNNING,
            attempt=before.attempt + 1,
            lease_token=before.lease_token + 1,
            worker_id=grant.by.worker_id,
            started_at=before.started_at or transaction.now,
        )
        ledger.charge(grant.tenant, grant.cost_seconds)
        ledger.count_queued(record.tenant_id, -1)
        changes.append(Change(record, "running", {"attempt": record.attempt, "worker_id": record.worker_id}))
        lease = _lease(rows[record.id], record.lease_token, record.attempt, transaction)
        lease_rows.append(_lease_row(transaction, lease, grant, record.tenant_id))
        granted.append((grant.by, lease))
    queue.take(transaction, ids)
    save_changes(transaction, changes)
    transaction.execute(sa.insert(leases), lease_rows)
    ledger.save(transaction)
    _raise_floors(transaction, market.floors)
    return granted


def _lease_row(transaction: Transaction, lease: Lease, grant: _Grant, tenant_id: str) -> dict[str, Any]:
    return {
        "job_id": lease.job_id,
        "lease_token": lease.lease_token,
        "tenant_id": tenant_id,
        "model": lease.model,
        "worker_id": grant.by.worker_id,
        "claim_id": grant.by.claim.claim_id,
        "charged": grant.cost_seconds,
        "expires_at": transaction.now + transaction.config.lease_seconds,
        "stop_at": None if lease.timeout is None else transaction.now + lease.timeout,
    }


def _lease(row: sa.Row[Any], lease_token: int, attempt: int, transaction: Transaction) -> Lease:
    return Lease(
        job_id=row.id,
        lease_token=lease_token,
        kind=row.kind,
        model=row.model,
        input=orjson.loads(row.input),
        attempt=attempt,
        lease_seconds=transaction.config.lease_seconds,
        band=_BANDS[row.band],
        is_suspect=row.is_suspect,
        step_tokens=row.step_tokens,
        cost_seconds=row.cost_seconds,
        timeout=row.timeout,
        num_previews=row.num_previews,
        output_format=row.output_format,
    )


def _raise_floors(transaction: Transaction, floors: dict[tuple[Band, str], float]) -> None:
    insert = transaction.upsert(schema.floors)
    vtime = schema.floors.c.vtime
    statement = insert.on_conflict_do_update(
        index_elements=["band", "model"],
        set_={"vtime": sa.case((insert.excluded.vtime > vtime, insert.excluded.vtime), else_=vtime)},
    )
    rows = [{"band": band, "model": model, "vtime": vtime} for (band, model), vtime in floors.items()]
    transaction.execute(statement, rows)

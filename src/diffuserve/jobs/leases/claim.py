"""Claims: jobs are leased fairest first, several at once, each under a lease of its own."""

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, WorkerNotFound
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.tenant import Tenant
from diffuserve.domain.workers.worker import Lease, LeaseEnd, WorkerRole
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import Command
from diffuserve.jobs.database.connections import IDS, Transaction
from diffuserve.jobs.database.lane_change import Moved
from diffuserve.jobs.leases import promises
from diffuserve.jobs.leases.claimers import Claimer, find_claimers
from diffuserve.jobs.leases.decode_pool import ModelPool, read_pools
from diffuserve.jobs.leases.open_lanes import head_tokens, open_lanes
from diffuserve.jobs.leases.worker_kinds import Placements
from diffuserve.jobs.policy.fairness import Claimant, choose_lane, farthest_ahead, seconds_left
from diffuserve.jobs.policy.lanes import Lane
from diffuserve.jobs.queue import ready_queue
from diffuserve.jobs.queue.changes import Change, load_records, save_changes
from diffuserve.jobs.queue.due import sweep_due
from diffuserve.jobs.queue.handicaps import raise_floors
from diffuserve.jobs.records import JobRecord, lease_of, record_of
from diffuserve.jobs.workers.offers import load_seconds

jobs, leases, ready, lanes, tenants = schema.jobs, schema.leases, schema.ready, schema.lanes, schema.tenants
workers, handicaps = schema.workers, schema.handicaps

_NEXT_JOBS = (
    sa.select(
        *(
            ready.c[name]
            for name in ("job_id", "seq", "cost_seconds", "step_tokens", "enqueued_at", "adapters", "hint")
        )
    )
    .where(ready.c.lane == sa.bindparam("key"), ready.c.seq > sa.bindparam("after"))
    # A sweep expires a bounded number of jobs; late ones that it left must not be leased.
    .where(sa.or_(ready.c.deadline.is_(None), ready.c.deadline > sa.bindparam("now")))
    .order_by(ready.c.seq)
    .limit(sa.bindparam("block"))
)
_OF_CLAIMS = (
    sa.select(jobs, leases.c.worker_id.label("holder"), leases.c.claim_id, leases.c.until)
    .join_from(leases, jobs, jobs.c.id == leases.c.job_id)
    .where(leases.c.claim_id.in_(IDS))
)
_INSERT_LEASE = sa.insert(leases)
_MAX_BLOCK = 64
_MAX_PASSED = 64  # lanes that a claim may inspect and reject


@dataclass(frozen=True)
class Claimed:
    """Leases that a claim was granted.

    If there are none, `seconds_left` is the time until the worker may take a job that it now leaves to
    others; `None` if there is no such job.
    """

    leases: list[Lease] = field(default_factory=list)
    seconds_left: float | None = None


@dataclass(frozen=True)
class ClaimJobs(Command[Claimed]):
    """Lease jobs to a worker. The outcome of a repeated `claim_id` is the leases granted before.

    It is `WorkerNotFound` for an unknown worker, and no lease for one that is draining.
    """

    worker_id: str
    claim: Claim

    @property
    def key(self) -> tuple[str, str]:
        """Worker and claim id, which identify the claim when it is sent again."""
        return self.worker_id, self.claim.claim_id

    @classmethod
    def apply_many(
        cls, transaction: Transaction, commands: Sequence[Self]
    ) -> list[Claimed | DiffuserveError]:
        sweep_due(transaction)
        claimers = find_claimers(transaction, {command.worker_id for command in commands})
        before = _granted_before(transaction, commands)
        granted = {key: Claimed(leases) for key, leases in before.items()}
        new = _first_of_each(
            command for command in commands if command.worker_id in claimers and command.key not in granted
        )
        if new:
            granted |= _grant(transaction, new, claimers)
        return [
            granted.get(command.key, Claimed())
            if command.worker_id in claimers
            else WorkerNotFound(f"no worker {command.worker_id}; register again")
            for command in commands
        ]


def _granted_before(
    transaction: Transaction, commands: Sequence[ClaimJobs]
) -> dict[tuple[str, str], list[Lease]]:
    """Return the live leases of claims whose response was lost, by the claim's key."""
    rows = transaction.rows(_OF_CLAIMS, {"ids": list({command.claim.claim_id for command in commands})})
    granted: dict[tuple[str, str], list[Lease]] = defaultdict(list)
    for row in rows:
        lease = lease_of(record_of(row), transaction.config.lease_seconds, LeaseEnd(row.until))
        granted[row.holder, row.claim_id].append(lease)
    return dict(granted)


def _first_of_each(commands: Iterable[ClaimJobs]) -> list[ClaimJobs]:
    """Drop repeated claims: a claim that is sent twice at once must not be served twice."""
    first: dict[tuple[str, str], ClaimJobs] = {}
    for command in commands:
        first.setdefault(command.key, command)
    return list(first.values())


def _grant(
    transaction: Transaction, commands: Sequence[ClaimJobs], claimers: dict[str, Claimer]
) -> dict[tuple[str, str], Claimed]:
    """Choose jobs for one claim after another, lease them, and return the leases by the claim's key."""
    most = max(command.claim.num_jobs for command in commands)
    claim_round = ClaimRound(transaction, open_lanes(transaction), block=min(most, _MAX_BLOCK) + 1)
    for command in commands:
        claim_round.serve(command, claimers[command.worker_id])
    saved = _save(claim_round)
    return {
        command.key: Claimed(saved.get(command.key, []), claim_round.seconds_left.get(command.key))
        for command in commands
    }


@dataclass(frozen=True)
class _Grant:
    """A job that was chosen for a claim."""

    job_id: str
    command: ClaimJobs
    claimer: Claimer
    tenant: Tenant
    cost_seconds: float
    until: LeaseEnd = LeaseEnd.FILES


@dataclass
class ClaimRound:
    """The queue while the claims of one transaction are served from it.

    Lanes and accounts are read once and then updated in memory; `grants` and `floors` are what the
    transaction has to write. `block` is the number of a lane's jobs that are read at a time. `seconds_left`
    says how long each claim still leaves jobs to other workers.
    """

    transaction: Transaction
    lanes: list[Lane]
    block: int
    heads: dict[str, deque[sa.Row[Any]]] = field(default_factory=dict)
    grants: list[_Grant] = field(default_factory=list)
    floors: dict[str, float] = field(default_factory=dict)
    seconds_left: dict[tuple[str, str], float] = field(default_factory=dict)

    def serve(self, command: ClaimJobs, claimer: Claimer) -> None:
        """Choose jobs for a claim until its room is full.

        A claim's first job is granted even if it exceeds `num_tokens`: otherwise no worker could run it.
        """
        claim, num_granted, num_tokens = command.claim, 0, 0
        models = claimer.models & frozenset(claim.models) if claim.models else claimer.models
        claimant = self.claimant(command.worker_id, claimer, models, claim.resident_models)
        while num_granted < claim.num_jobs:
            chosen = self.choose(claimant, claim)
            if chosen is None:
                if not claim.ahead_of:
                    self._note_left(command, claimant)
                return
            lane, head = chosen
            num_tokens += head.step_tokens
            if num_granted and claim.num_tokens is not None and num_tokens > claim.num_tokens:
                return
            self._grant(lane, head, command, claimer)
            self._advance(lane)
            claimant = claimant.having(lane.model)
            num_granted += 1

    def choose(self, claimant: Claimant, claim: Claim | None = None) -> tuple[Lane, sa.Row[Any]] | None:
        """Return the lane that is served next, with its first job; `None` if no lane has a suitable one."""
        now, config, num_passed, lanes = self.transaction.now, self.transaction.config, 0, self.lanes
        if claim is not None and claim.ahead_of:
            lanes = self._wanted(claim, claimant)
        while (lane := choose_lane(lanes, claimant, now, config)) is not None and num_passed < _MAX_PASSED:
            heads = self._heads_of(lane)
            if heads and (claim is None or claim.wants(lane.model, lane.band, heads[0].step_tokens)):
                return lane, heads[0]
            if not heads:
                # All its jobs are late: they wait for a sweep, and the lane has nothing to lease.
                self.lanes.remove(lane)
            if lanes is not self.lanes:
                lanes.remove(lane)
            num_passed += bool(heads)
        return None

    def _wanted(self, claim: Claim, claimant: Claimant) -> list[Lane]:
        """Return the lanes whose heads come before the places that the claim names."""
        farthest = farthest_ahead(claimant.runnable(self.lanes))
        lanes = [lane for lane in self.lanes if claim.wants(lane.model, lane.band) and lane.vtime <= farthest]
        if not any(place.step_tokens for place in claim.ahead_of.values()):
            return lanes
        return [lane for lane in lanes if claim.wants(lane.model, lane.band, self._head_tokens(lane))]

    def _head_tokens(self, lane: Lane) -> int:
        heads = self.heads.get(lane.key)
        return int(heads[0].step_tokens) if heads else self._stored_head_tokens.get(lane.key, 0)

    @functools.cached_property
    def _stored_head_tokens(self) -> dict[str, int]:
        return head_tokens(self.transaction)

    def _note_left(self, command: ClaimJobs, claimant: Claimant) -> None:
        now, config = self.transaction.now, self.transaction.config
        if (left := seconds_left(self.lanes, claimant, now, config)) is not None:
            self.seconds_left[command.key] = left

    def claimant(
        self, worker_id: str, claimer: Claimer, models: frozenset[str], resident: Collection[str]
    ) -> Claimant:
        """Return a worker, with these of its models, as the fairness policy sees it."""
        loads = load_seconds(self.transaction, models) if len(models) > 1 else {}
        cold = models - frozenset(resident) if resident else frozenset()
        placement = self.placements.of(worker_id, claimer.is_spot, cold)
        return Claimant(models, frozenset(resident), claimer.role, placement, claimer.is_exact, loads)

    @functools.cached_property
    def placements(self) -> Placements:
        """The placements of the workers that claim."""
        return Placements(self.transaction, self.lanes)

    def pass_over(self, lane: Lane, head: sa.Row[Any]) -> None:
        """Update the queue as if a lane's first job had been granted."""
        lane.account.charge(head.cost_seconds)
        self._advance(lane)

    def _grant(self, lane: Lane, head: sa.Row[Any], command: ClaimJobs, claimer: Claimer) -> None:
        # In start-time fair queueing the system's virtual time is the start tag of the job in service: the
        # account's time before the charge, and before charges that may be given back. Tenants that were idle
        # resume from this floor, on each model that this worker might have served instead.
        for model in claimer.models:
            self.floors[model] = max(self.floors.get(model, 0.0), lane.settled_vtime)
        lane.account.charge(head.cost_seconds)
        tenant = lane.account.tenant
        self.grants.append(_Grant(head.job_id, command, claimer, tenant, head.cost_seconds))

    def _advance(self, lane: Lane) -> None:
        """Advance the lane to its next job, or drop it after its last one."""
        heads = self.heads[lane.key]
        last = heads.popleft()
        if not heads:
            heads.extend(self._read(lane.key, last.seq))
        if not heads:
            self.lanes.remove(lane)
            return
        lane.head_seq, lane.head_at = heads[0].seq, heads[0].enqueued_at
        lane.head_adapters, lane.head_hint = heads[0].adapters, heads[0].hint
        lane.head_since = self.transaction.now

    def _heads_of(self, lane: Lane) -> deque[sa.Row[Any]]:
        if lane.key not in self.heads:
            self.heads[lane.key] = deque(self._read(lane.key, lane.head_seq - 1))
        return self.heads[lane.key]

    def _read(self, key: str, after_seq: int) -> list[sa.Row[Any]]:
        values = {"key": key, "after": after_seq, "block": self.block, "now": self.transaction.now}
        return list(self.transaction.execute(_NEXT_JOBS, values).all())


def _save(claim_round: ClaimRound) -> dict[tuple[str, str], list[Lease]]:
    """Lease the chosen jobs, and write all the changes that follow."""
    transaction, grants = claim_round.transaction, claim_round.grants
    if not grants:
        return {}
    job_ids = [grant.job_id for grant in grants]
    queued = load_records(transaction, job_ids)
    running = [_started(queued[grant.job_id], grant, transaction.now) for grant in grants]
    ready_queue.take(transaction, job_ids, Moved.CLAIMED)
    save_changes(transaction, [_change_of(record) for record in running])
    grants = _with_ends(transaction, grants, running)
    rows = [_lease_row(transaction, record, grant) for record, grant in zip(running, grants, strict=True)]
    transaction.execute(_INSERT_LEASE, rows)
    _charge(transaction, grants)
    raise_floors(transaction, claim_round.floors)
    promised = {grant.command.worker_id: grant.claimer.num_promised for grant in grants}
    promises.use(transaction, promised, [grant.command.worker_id for grant in grants])
    granted: dict[tuple[str, str], list[Lease]] = defaultdict(list)
    for record, grant in zip(running, grants, strict=True):
        lease = lease_of(record, transaction.config.lease_seconds, grant.until)
        granted[grant.command.key].append(lease)
    return dict(granted)


def _with_ends(
    transaction: Transaction, grants: Sequence[_Grant], records: Sequence[JobRecord]
) -> list[_Grant]:
    """Return the grants with the phase that each ends with, charged only up to that phase."""
    read = functools.cache(functools.partial(read_pools, transaction))
    ended = []
    for grant, record in zip(grants, records, strict=True):
        if _ends_with_latents(grant, record, read):
            seconds = max(record.work_seconds - record.decode_seconds, 0.0)
            ended.append(replace(grant, until=LeaseEnd.LATENTS, cost_seconds=seconds))
        else:
            ended.append(grant)
    return ended


def _ends_with_latents(grant: _Grant, record: JobRecord, read: Callable[[], Mapping[str, ModelPool]]) -> bool:
    """Return whether a lease ends with latents; by choice it does not if latents were unusable before."""
    if record.is_denoised or not grant.claimer.role.denoises:
        return False
    if grant.claimer.role is WorkerRole.DENOISE:
        return True
    if record.num_latents_lost or not grant.claimer.has_decoders:
        return False
    pool = read()[record.model]
    if not pool.hands_over(record, grant.claimer.price):
        return False
    pool.decode_seconds += record.decode_seconds
    return True


def _started(record: JobRecord, grant: _Grant, now: float) -> JobRecord:
    assert record.status is JobStatus.QUEUED, f"{record.id} is in the ready queue and {record.status}"
    return replace(
        record,
        status=JobStatus.RUNNING,
        attempt=record.attempt + 1,
        lease_token=record.lease_token + 1,
        worker_id=grant.command.worker_id,
        started_at=record.started_at or now,
    )


def _change_of(record: JobRecord) -> Change:
    details = {"attempt": record.attempt, "worker_id": record.worker_id}
    return Change(record, "running", JobStatus.QUEUED, details)


def _lease_row(transaction: Transaction, record: JobRecord, grant: _Grant) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "lease_token": record.lease_token,
        "tenant_id": record.tenant_id,
        "model": record.model,
        "worker_id": grant.command.worker_id,
        "claim_id": grant.command.claim.claim_id,
        "until": grant.until,
        "charged": grant.cost_seconds,
        "granted_at": transaction.now,
        "expires_at": transaction.now + transaction.config.lease_seconds,
        "stop_at": None if record.timeout is None else transaction.now + record.timeout,
    }


def _charge(transaction: Transaction, grants: Sequence[_Grant]) -> None:
    """Charge the tenants the predicted seconds, which the actual ones replace when the lease ends."""
    ledger = ready_queue.Ledger()
    for grant in grants:
        ledger.charge(grant.tenant, grant.cost_seconds)
        ledger.count_queued(grant.tenant.id, -1)
    ledger.save(transaction)

"""Leases as workers name them: each is checked, token and worker, before a route of it runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from fastapi import Depends, Header, Request

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import WorkerCaller, key_of
from diffuserve.api.http.parts import part_of
from diffuserve.api.http.path_params import JobId, checked_token
from diffuserve.jobs.store import JobStore


class LeaseReport(Protocol):
    """Report of a worker on a job that it holds."""

    @property
    def lease_token(self) -> int:
        """The token of its lease."""


Report = TypeVar("Report", bound=LeaseReport)


@dataclass(frozen=True)
class CheckedLease:
    """A lease that the caller holds, by the key with which its worker registered."""

    job_id: str
    token: int
    key_id: str

    @property
    def folder(self) -> str:
        """The folder of the files that the attempt stores."""
        return f"{self.job_id}/{self.token}"


@dataclass(frozen=True)
class Reported(Generic[Report]):
    """A report, and the lease whose token it carries."""

    lease: CheckedLease
    body: Report


Token = Annotated[int, Header()]


def _named(job_id: str, token: int, caller: Caller) -> CheckedLease:
    """Return the lease that a worker names, unchecked. Raise `LeaseLost` for a token that no lease has."""
    return CheckedLease(job_id, checked_token(job_id, token), key_of(caller))


# FastAPI resolves each dependency for every request, so these find the store without another one.
async def held_lease(
    job_id: JobId, lease_token: Token, request: Request, caller: WorkerCaller
) -> CheckedLease:
    """Return the lease that a request names. Raise `LeaseLost` unless the caller holds it."""
    lease = _named(job_id, lease_token, caller)
    await part_of(request, JobStore).leases.check(job_id, lease.token, lease.key_id)
    return lease


async def held_live_lease(
    job_id: JobId, lease_token: Token, request: Request, caller: WorkerCaller
) -> CheckedLease:
    """Return the lease of a `live` job. Raise as `held_lease` does, and what `check_live` raises."""
    lease = _named(job_id, lease_token, caller)
    await part_of(request, JobStore).leases.check_live(job_id, lease.token, lease.key_id)
    return lease


def reported(kind: type[Report]) -> Callable[..., Awaitable[Reported[Report]]]:
    """Return the dependency that reads a report. It raises `LeaseLost` unless the caller holds the lease."""

    async def held(body: Report, request: Request, job_id: JobId, caller: WorkerCaller) -> Reported[Report]:
        lease = _named(job_id, body.lease_token, caller)
        await part_of(request, JobStore).leases.check(job_id, lease.token, lease.key_id)
        return Reported(lease, body)

    return _reading(held, kind)


def reported_end(kind: type[Report]) -> Callable[..., Awaitable[Reported[Report]]]:
    """Return the dependency that reads a report which ends its lease, and may be a repetition.

    The transaction that ends the lease decides whether the caller holds it, or has ended it in this way
    before; here a token is refused that no lease has.
    """

    async def held(body: Report, job_id: JobId, caller: WorkerCaller) -> Reported[Report]:
        return Reported(_named(job_id, body.lease_token, caller), body)

    return _reading(held, kind)


def _reading(
    held: Callable[..., Awaitable[Reported[Report]]], kind: type[Report]
) -> Callable[..., Awaitable[Reported[Report]]]:
    """Return a dependency whose body is of this type, by which FastAPI validates it."""
    held.__annotations__["body"] = kind
    return held


Held = Annotated[CheckedLease, Depends(held_lease)]
HeldLive = Annotated[CheckedLease, Depends(held_live_lease)]

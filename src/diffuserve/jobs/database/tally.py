"""Counts of what ends in one transaction: jobs by status and duration, and device-seconds of attempts."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa

from diffuserve.domain.durations import bucket_of
from diffuserve.domain.jobs.job import EndedJob, JobStatus

TallyKey = tuple["TallyKind", str]


class AttemptKey(NamedTuple):
    """Key of attempts that are counted together; `outcome` is how they ended."""

    tenant_id: str
    model: str
    worker_id: str
    outcome: str

    @classmethod
    def under(cls, lease: sa.Row[Any], outcome: str) -> "AttemptKey":
        """Return the attempt under a row of `leases`."""
        return cls(lease.tenant_id, lease.model, lease.worker_id, outcome)


class TallyKind(StrEnum):
    """Subject of a count; the words in brackets say what its key is."""

    ENDED = "ended"  # jobs (final status)
    QUEUE = "queue"  # jobs that succeeded (bucket of the seconds in the queue)
    RUN = "run"  # jobs that succeeded (bucket of the seconds since the first lease)
    OUTCOME = "outcome"  # attempts and their device-seconds (outcome)
    TENANT = "tenant"  # attempts and their device-seconds (tenant)


@dataclass
class TallyCount:
    """Number of jobs or attempts, and their device-seconds."""

    num: int = 0
    seconds: float = 0.0


@dataclass
class AttemptCount(TallyCount):
    """Number of attempts, their device-seconds, and the images and clips that they produced."""

    num_images: int = 0


@dataclass
class Tally:
    """Counts of a transaction, written together at its end."""

    counts: dict[TallyKey, TallyCount] = field(default_factory=lambda: defaultdict(TallyCount))
    attempts: dict[AttemptKey, AttemptCount] = field(default_factory=lambda: defaultdict(AttemptCount))

    def add_jobs(self, ended: Iterable[EndedJob]) -> None:
        """Count jobs that have become final."""
        for job in ended:
            self._add(TallyKind.ENDED, job.status)
            if job.status is JobStatus.SUCCEEDED and job.started_at is not None:
                self._add(TallyKind.QUEUE, str(bucket_of(job.started_at - job.created_at)))
                self._add(TallyKind.RUN, str(bucket_of(job.finished_at - job.started_at)))

    def add_attempt(self, attempt: AttemptKey, seconds: float, num_images: int = 0) -> None:
        """Count an attempt that has ended, its device-seconds and its images."""
        self._add(TallyKind.OUTCOME, attempt.outcome, seconds)
        self._add(TallyKind.TENANT, attempt.tenant_id, seconds)
        count = self.attempts[attempt]
        count.num += 1
        count.seconds += seconds
        count.num_images += num_images

    def add_kept(self, attempt: AttemptKey, seconds: float) -> None:
        """Count the device-seconds in the checkpoint of a job that ends while it is queued."""
        self.counts[TallyKind.OUTCOME, attempt.outcome].seconds += seconds
        self.counts[TallyKind.TENANT, attempt.tenant_id].seconds += seconds
        self.attempts[attempt].seconds += seconds

    def _add(self, kind: TallyKind, key: str, seconds: float = 0.0) -> None:
        count = self.counts[kind, key]
        count.num += 1
        count.seconds += seconds

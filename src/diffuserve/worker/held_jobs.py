"""The jobs that a worker holds; owned by its agent."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from diffuserve.domain.job import Phase
from diffuserve.domain.worker import HeldLease, Lease


@dataclass
class HeldJob:
    """One lease, and how far its job is. `is_in_engine` until the engine is done with it."""

    lease: Lease
    folder: Path
    is_in_engine: bool = True
    is_canceling: bool = False
    phase: Phase = Phase.ENCODE
    step: int = 0
    total: int = 0
    has_news: bool = False
    since: float = field(default_factory=time.monotonic)

    @property
    def attempt(self) -> str:
        """What the engine knows this lease by."""
        return f"{self.lease.job_id}-{self.lease.lease_token}"

    def move(self, phase: Phase, step: int, total: int) -> None:
        self.phase, self.step, self.total = phase, step, total
        self.has_news = True

    def to_renew(self) -> HeldLease:
        return HeldLease(
            job_id=self.lease.job_id,
            lease_token=self.lease.lease_token,
            phase=self.phase,
            step=self.step,
            total=self.total,
        )

"""The reaper: the background task that does the work that is due by time, round by round.

Any number of control planes may run a reaper; a row in the database says whose turn it is.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.jobs.tasks.housekeeping import Housekeeping
from diffuserve.storage.base import ArtifactStore, checkpoint_folder, input_folder
from diffuserve.storage.live_parts import LINGER_SECONDS, live_folder
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 1.0
_FORGET_AT_ONCE = 200  # jobs per transaction: a short one does not hold up other writes
_FORGET_EVERY = 10
_SWEEP_EVERY = 600
_ORPHAN_AGE_SECONDS = 3_600.0


@dataclass
class Reaper:
    """Runs beside the API and does one round each second until it is canceled."""

    housekeeping: Housekeeping
    artifacts: ArtifactStore
    _live_since: float = 0.0
    _holder: str = field(default_factory=lambda: secrets.token_hex(8))
    _num_rounds: int = 0
    _forget_at: int = 1
    _sweep_at: int = _SWEEP_EVERY

    async def run(self) -> None:
        """Run rounds forever. An error ends a round, not the reaper: without a reaper, jobs would be lost."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._for_ever(self._round))
            tasks.create_task(self._for_ever(self._clean_up))

    async def _for_ever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except ServerUnavailable as error:
                log.warning("no round of the reaper: %s", error, extra=once_a_minute())
            except Exception:
                log.exception("a round of the reaper failed; the next one starts in %.0f s", _PERIOD_SECONDS)
            await asyncio.sleep(_PERIOD_SECONDS)

    async def _round(self) -> None:
        has_turn = await self.housekeeping.reap(self._holder)
        self._num_rounds += has_turn

    async def _clean_up(self) -> None:
        """Delete the files that are due, beside the rounds: an unavailable store would delay these."""
        if self._num_rounds >= self._forget_at:
            self._forget_at = self._num_rounds + _FORGET_EVERY
            await self.forget_outdated()
            await self.forget_files()
            await self.forget_live_parts(LINGER_SECONDS)
            await self.forget_checkpoints()
        if self._num_rounds >= self._sweep_at:
            self._sweep_at = self._num_rounds + _SWEEP_EVERY
            await self.sweep_orphans(_ORPHAN_AGE_SECONDS)
            await self.sweep_inputs(_ORPHAN_AGE_SECONDS)

    async def forget_outdated(self) -> None:
        """Delete outdated jobs, rows first: files that a crash leaves behind are swept as orphans."""
        while outdated := await self.housekeeping.find_outdated(_FORGET_AT_ONCE):
            for job_id in await self.housekeeping.forget(outdated):
                await self.artifacts.delete(job_id)
            if len(outdated) < _FORGET_AT_ONCE:
                return

    async def forget_live_parts(self, linger_seconds: float) -> None:
        """Delete the parts of live clips some time after their jobs have ended."""
        ended, until = await self.housekeeping.ended_live(self._live_since, linger_seconds)
        for job_id, token in ended:
            await self.artifacts.delete(live_folder(job_id, token))
        self._live_since = until

    async def forget_checkpoints(self) -> None:
        """Delete the checkpoints of ended jobs, files first: after a crash in between it is repeated."""
        while ended := await self.housekeeping.ended_checkpoints(_FORGET_AT_ONCE):
            for job_id, stored in ended.items():
                await self.artifacts.delete(checkpoint_folder(job_id, stored.lease_token))
            await self.housekeeping.forget_checkpoints(ended)

    async def sweep_orphans(self, older_than_seconds: float) -> None:
        """Delete the files of lost attempts and of jobs that no longer exist."""
        attempts = await self.artifacts.attempts(older_than_seconds)
        tokens = await self.housekeeping.tokens_of({job_id for job_id, _ in attempts})
        for job_id, token in attempts:
            if token not in tokens.get(job_id, ()):
                await self.artifacts.delete(f"{job_id}/{token}")

    async def forget_files(self) -> None:
        """Delete uploaded images that have expired, rows first as above."""
        while expired := await self.housekeeping.forget_files():
            for file_id in expired:
                await self.artifacts.delete(input_folder(file_id))

    async def sweep_inputs(self, older_than_seconds: float) -> None:
        """Delete uploaded images without a row: their upload or their deletion was interrupted."""
        stored = await self.artifacts.inputs(older_than_seconds)
        known = await self.housekeeping.known_files(stored)
        for file_id in stored:
            if file_id not in known:
                await self.artifacts.delete(input_folder(file_id))

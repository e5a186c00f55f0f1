"""Reports the progress of jobs that take long enough to be watched."""

import asyncio
from itertools import islice

from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.jobs.progress_report import MAX_PROGRESS_JOBS

_REPORT_SECONDS = 0.5
_UNWATCHED_SECONDS = 1.9  # slightly less than four rounds, as their times vary


class ProgressLoop:
    """Reports jobs that advanced in one request, at most twice a second.

    A job is not reported in its first half second, as most are over by then. After that, watched jobs are in
    each request and the others in every fourth: so new watchers are noticed, and clients never read old
    progress. Jobs that do not fit into a request are in the next one.
    """

    def __init__(self, state: AgentState, membership: Membership, reporter: ResultReporter) -> None:
        self._state, self._membership, self._reporter = state, membership, reporter

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if advanced := self._advanced(asyncio.get_running_loop().time()):
                self._reporter.progress(await self._membership.worker_id(), advanced)

    def _advanced(self, now: float) -> list[HeldJob]:
        jobs = (job for job in self._state.held.values() if job.has_unreported_progress and _is_due(job, now))
        return list(islice(jobs, MAX_PROGRESS_JOBS))


def _is_due(job: HeldJob, now: float) -> bool:
    if job.reported_at is None:
        return now - job.since >= _REPORT_SECONDS
    return job.is_watched or now - job.reported_at >= _UNWATCHED_SECONDS

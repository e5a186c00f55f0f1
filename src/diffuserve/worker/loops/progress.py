"""Reports the progress of jobs that take long enough to be watched."""

import asyncio

from diffuserve.worker.agent_state import AgentState
from diffuserve.worker.result_reporter import ResultReporter

_REPORT_SECONDS = 0.5


class ProgressLoop:
    """Reports each job that advanced, at most twice a second and not in its first half second."""

    def __init__(self, state: AgentState, reporter: ResultReporter) -> None:
        self._state, self._reporter = state, reporter

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            now = asyncio.get_running_loop().time()
            for job in list(self._state.held.values()):
                if job.has_unreported_progress and now - job.since >= _REPORT_SECONDS:
                    self._reporter.progress(job)

"""Keeps engines running, and ends the agent when none can run."""

import asyncio
import logging

from diffuserve.agent.engines.engines import Engines
from diffuserve.agent.exit_codes import CANNOT_START, ENGINE_LOST
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.agent_state import AgentState

log = logging.getLogger(__name__)

_REPORT_SECONDS = 0.6


class EngineLoop:
    """Runs engines until none can run."""

    def __init__(self, engines: Engines, state: AgentState, reporter: ResultReporter) -> None:
        self._engines, self._state, self._reporter = engines, state, reporter

    async def run(self) -> None:
        """Run engines; after too many deaths report what they held before the agent ends.

        An engine that cannot start now will not start the next time either.
        """
        withdrawal = await self._engines.run()
        if self._state.is_over:
            return
        if withdrawal.could_not_start:
            log.error("the engine cannot start: %s", withdrawal.reason)
            self._state.end(CANNOT_START)
            return
        reported = asyncio.create_task(self._reporter.all_reported())
        await asyncio.wait({reported}, timeout=_REPORT_SECONDS)
        self._state.end(ENGINE_LOST)

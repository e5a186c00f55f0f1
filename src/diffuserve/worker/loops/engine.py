"""Keeps the engine running, and ends the agent with an engine that cannot be."""

import asyncio
import logging

from diffuserve.worker.agent_state import AgentState
from diffuserve.worker.exit_codes import CANNOT_START, ENGINE_LOST
from diffuserve.worker.result_reporter import ResultReporter
from diffuserve.worker.supervisor import EngineSupervisor

log = logging.getLogger(__name__)

_REPORT_SECONDS = 0.6


class EngineLoop:
    """Runs the engine's supervisor until it gives up."""

    def __init__(self, engine: EngineSupervisor, state: AgentState, reporter: ResultReporter) -> None:
        self._engine, self._state, self._reporter = engine, state, reporter

    async def run(self) -> None:
        """Supervise the engine; after too many deaths report what it held before the agent ends.

        An engine that cannot start now will not start the next time either.
        """
        code = await self._engine.run()
        if self._state.is_over:
            return
        if self._engine.cannot_start(code):
            log.error("the engine cannot start: %s", self._engine.reason(code))
            self._state.end(CANNOT_START)
            return
        reported = asyncio.create_task(self._reporter.all_reported())
        await asyncio.wait({reported}, timeout=_REPORT_SECONDS)
        self._state.end(ENGINE_LOST)

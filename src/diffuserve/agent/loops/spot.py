"""Follows the cloud's notices about the end of this machine."""

import asyncio
import logging

from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.spot.base import Notice, NoticeKind, NoticeSource
from diffuserve.agent.state.agent_state import AgentState, DrainOrder
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.telemetry.outage_log import OutageLog

log = logging.getLogger(__name__)

_ACKNOWLEDGE_SECONDS = 1.0  # an acknowledgement only saves the cloud a little time


class SpotLoop:
    """Looks for notices as long as the agent runs: an interruption drains it at once, a hint at leisure.

    A hint (`REBALANCE`) leads to an ordinary drain: no more claims, and `drain_seconds` for held jobs. A hint
    that is older than the worker is ignored: the worker was started to use the machine until its end.
    """

    def __init__(
        self, source: NoticeSource | None, state: AgentState, metrics: WorkerMetrics, notice_seconds: float
    ) -> None:
        self._source, self._state, self._metrics = source, state, metrics
        self._notice_seconds = notice_seconds
        self._known: NoticeKind | None = None
        self._interruption: Notice | None = None
        self._outages = OutageLog("" if source is None else f"the metadata service of {source.cloud}")

    async def run(self) -> None:
        if self._source is None:
            return
        is_first = True
        while self._interruption is None:
            try:
                notice = await self._source.look()
            except ServerUnavailable as error:
                self._outages.note(error)
            else:
                self._outages.note(None)
                self._react_to(notice, is_first)
                is_first = False
            await asyncio.sleep(self._source.pause_seconds)

    async def acknowledge(self) -> None:
        """Tell the cloud that all jobs are released, if it announced the end of this machine."""
        if self._source is None or self._interruption is None:
            return
        try:
            async with asyncio.timeout(_ACKNOWLEDGE_SECONDS):
                await self._source.acknowledge(self._interruption)
        except (TimeoutError, ServerUnavailable) as error:
            log.warning("the notice of %s is not acknowledged: %r", self._source.cloud, error)

    async def close(self) -> None:
        if self._source is not None:
            await self._source.close()

    def _react_to(self, notice: Notice | None, is_first: bool) -> None:
        assert self._source is not None
        if notice is None or notice.kind is self._known:
            return
        self._known = notice.kind
        self._metrics.spot_notice(notice.kind)
        reason = f"{notice.kind} notice of {self._source.cloud}: {notice.details}"
        log.warning("%s", reason)
        if notice.kind is NoticeKind.INTERRUPTION:
            self._interruption = notice
            interrupted = ReleaseCause.INTERRUPTED
            self._state.drain(DrainOrder(reason=reason, cause=interrupted, seconds=self._notice_seconds))
        elif not is_first:
            self._state.drain(DrainOrder(reason=reason))

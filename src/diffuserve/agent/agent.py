"""The agent: claims jobs, renews their leases, feeds the engine processes and reports their results.

It has one event loop and no torch, so no engine can stop its heartbeats. Each loop does one thing and
survives an outage of the control plane; they share only `AgentState`.
"""

import asyncio
from collections.abc import Mapping

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.engines import Engines
from diffuserve.agent.engines.model_source import ModelSource
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.agent.jobs.adapter_fetcher import FetchAdapter, no_store
from diffuserve.agent.jobs.claim_gate import ClaimGate
from diffuserve.agent.jobs.engine_jobs import EngineJobs
from diffuserve.agent.loops.claim import ClaimLoop
from diffuserve.agent.loops.control import ControlLoop
from diffuserve.agent.loops.deletion_cost import DeletionCostLoop
from diffuserve.agent.loops.drain import DrainLoop
from diffuserve.agent.loops.engine import EngineLoop
from diffuserve.agent.loops.heartbeat import HeartbeatLoop
from diffuserve.agent.loops.idle import IdleLoop
from diffuserve.agent.loops.orders import OrdersLoop
from diffuserve.agent.loops.peers import PeersLoop
from diffuserve.agent.loops.progress import ProgressLoop
from diffuserve.agent.loops.spot import SpotLoop
from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.pod import Pod
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.registration.worker_status import WorkerStatus
from diffuserve.agent.reporting.job_spans import JobSpans
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.run_forever import Loop, run_forever
from diffuserve.agent.spot.machine import ON_DEMAND, Machine
from diffuserve.agent.state.agent_state import AgentState, DrainOrder
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.telemetry.memory import ReadMemory, read_memory
from diffuserve.telemetry.tracing import OFF, Tracer

_REFUSED = DrainOrder(reason="the control plane refuses this worker", seconds=0.0, exit_code=CANNOT_START)
"""Nothing can be reported any more, so held jobs are left to their leases at once."""


class WorkerAgent:
    """A worker from its start to its end: `run` returns the exit code. Its `machine` may be taken away."""

    def __init__(
        self,
        config: WorkerConfig,
        client: LeaseClient,
        memory: ReadMemory = read_memory,
        machine: Machine = ON_DEMAND,
        tracer: Tracer = OFF,
        fetch_adapter: FetchAdapter = no_store,
    ) -> None:
        self.config = config
        self.metrics = WorkerMetrics()
        self._client = client
        self._state = state = AgentState()
        self._membership = Membership(
            config, client, on_refused=lambda: state.drain(_REFUSED), is_spot=machine.is_spot
        )
        self._models = models = ServedModels(config, state)
        self._gate = ClaimGate(config, state, models, memory, is_storage_away=lambda: client.is_storage_away)
        spans = JobSpans(tracer)
        self._reporter = ResultReporter(client, self.metrics, self._gate.forget, spans)
        self._jobs = EngineJobs(
            client,
            state,
            models,
            self._gate,
            self._reporter,
            self.metrics,
            config.checkpoint_seconds,
            spans,
            fetch_adapter,
        )
        self._status = WorkerStatus(state, models, self._membership, self._gate, self.metrics)
        self._claims = ClaimLoop(client, self._membership, state, self._gate, self._jobs)
        self._engines = Engines(
            config,
            state,
            models,
            on_announced=self._membership.announce,
            on_job=self._jobs.handle,
            on_change=self._engine_changed,
        )
        self._orders = OrdersLoop(config, self._membership, state, models, ModelSource())
        self._spot = SpotLoop(machine.notices, state, self.metrics, config.notice_seconds)

    @property
    def state(self) -> WorkerState:
        return self._status.worker_state

    @property
    def held(self) -> Mapping[str, HeldJob]:
        """The held jobs by their ids."""
        return self._state.held

    async def run(self) -> int:
        """Work until drained, or until the engine cannot be kept running. Return the exit code."""
        async with self.metrics.served(self.config.metrics_host, self.config.metrics_port):
            return await self._run()

    async def _run(self) -> int:
        tasks = [asyncio.create_task(run_forever(loop)) for loop in self._loops()]
        try:
            exit_code = await self._state.exit_code
            if exit_code in (0, CANNOT_START):
                await self._membership.leave()
            if not self.config.has_neighbors:
                await self._spot.acknowledge()
            return exit_code
        finally:
            await self._engines.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._jobs.close()
            await self._spot.close()
            await self._client.close()

    def drain(self) -> None:
        """Stop claiming, finish what fits into `drain_seconds`, release the rest, and end."""
        self._state.drain(DrainOrder(reason="told to stop"))

    def _loops(self) -> list[Loop]:
        client, membership, state, jobs = self._client, self._membership, self._state, self._jobs
        drain_seconds = self.config.drain_seconds
        return [
            membership.run,
            EngineLoop(self._engines, state, self._reporter).run,
            self._engines.prepare_restarts,
            self._claims.run,
            HeartbeatLoop(client, membership, state, self._status, jobs).run,
            ControlLoop(client, membership, state, jobs).run,
            self._orders.run,
            PeersLoop(client, membership, self._models).run,
            ProgressLoop(state, self._membership, self._reporter).run,
            self._spot.run,
            DeletionCostLoop(Pod() if self.config.tells_deletion_cost else None, state).run,
            IdleLoop(
                client, membership, state, self._status, self.config.idle_seconds, self.config.idle_least
            ).run,
            DrainLoop(client, membership, state, jobs, self._reporter, drain_seconds).run,
        ]

    def _engine_changed(self, model: ServedModel) -> None:
        """Handle an engine that became ready, sent a heartbeat, is stuck, or (without a link) has died."""
        engine = model.engine
        if engine is None or engine.link is None:
            if not model.is_withdrawn:
                self.metrics.engine_died()
            self._state.cut_claim()
            self._jobs.release_all_of_dead_engine(model)
        else:
            if engine.last_heartbeat is not None:
                self.metrics.engine_heartbeat(model.name, engine.last_heartbeat)
            if model.is_ready:
                self._jobs.begin_awaiting(model)
        self.metrics.set_models(self._models.all)
        self._status.request_heartbeat_if_changed()
        self._gate.update()

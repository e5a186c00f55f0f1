"""The state that the loops of an agent share."""

import asyncio
from dataclasses import dataclass, field

from diffuserve.agent.state.held_job import HeldJob
from diffuserve.agent.state.held_states import HeldState, JobCommand
from diffuserve.domain.workers.model_orders import ModelOrder, OrdersReport
from diffuserve.domain.workers.worker import Lease, ReceivedCommands, ReleaseCause, WorkerState


@dataclass(frozen=True, kw_only=True)
class DrainOrder:
    """The reason of a drain, for operators; the cause in its releases; and the time that it may take.

    All jobs are released within `seconds`; `None` stands for the worker's own `drain_seconds`. Then the agent
    ends with `exit_code`.
    """

    reason: str
    cause: ReleaseCause = ReleaseCause.DRAIN
    seconds: float | None = None
    exit_code: int = 0


@dataclass
class AgentState:
    """The state that the loops of one agent share; it needs no lock, since they share an event loop too.

    `held` maps job ids to jobs. `has_capacity` is set while jobs may be claimed, `heartbeat_due` when the
    control plane should learn of a change before the next regular heartbeat. `reported_state` is that of
    the last heartbeat, `num_taken` the number of leases so far, `claim` the claim under way. The agent ends
    with `exit_code`. `order` is the last order of a model, and `orders` what is reported of such.
    """

    held: dict[str, HeldJob] = field(default_factory=dict)
    has_capacity: asyncio.Event = field(default_factory=asyncio.Event)
    heartbeat_due: asyncio.Event = field(default_factory=asyncio.Event)
    drain_requested: asyncio.Event = field(default_factory=asyncio.Event)
    drain_order: DrainOrder | None = None
    reported_state: WorkerState = WorkerState.INITIALIZING
    num_taken: int = 0
    claim: asyncio.Task[list[Lease]] | None = None
    order: ModelOrder | None = None
    order_changed: asyncio.Event = field(default_factory=asyncio.Event)
    orders: OrdersReport | None = None
    exit_code: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_draining(self) -> bool:
        return self.drain_requested.is_set()

    @property
    def is_over(self) -> bool:
        return self.exit_code.done()

    @property
    def jobs_in_engine(self) -> list[HeldJob]:
        return [job for job in self.held.values() if job.is_in_engine]

    @property
    def awaited_models(self) -> list[str]:
        """The models that held jobs wait for, the first of them first."""
        awaiting = (job for job in self.held.values() if job.state is HeldState.AWAITS_MODEL)
        return list(dict.fromkeys(job.lease.model for job in awaiting))

    def held_for(self, model: str) -> list[HeldJob]:
        """Return the held jobs of a model."""
        return [job for job in self.held.values() if job.lease.model == model]

    def has_engine_work(self, model: str) -> bool:
        """Return whether a job of a model has all that it needs, and so is the engine's to work on."""
        states = {job.state for job in self.held_for(model)}
        return HeldState.IN_ENGINE in states or HeldState.PREEMPTING in states

    @property
    def received_commands(self) -> ReceivedCommands:
        """The commands that are being carried out."""
        held = self.held.items()
        return ReceivedCommands(
            cancel=tuple(job_id for job_id, job in held if JobCommand.CANCEL in job.commands),
            preempt=tuple(job.attempt for _, job in held if JobCommand.PREEMPT in job.commands),
            drain=self.is_draining,
        )

    def job_in_engine(self, attempt: str) -> HeldJob | None:
        """Return the job of `attempt`, or `None` if that attempt's lease was lost."""
        job = self.held.get(attempt.rpartition("-")[0])
        return job if job is not None and job.is_in_engine and job.attempt == attempt else None

    @property
    def release_cause(self) -> ReleaseCause:
        """The cause given when jobs that cannot run here are released."""
        return self.drain_order.cause if self.drain_order else ReleaseCause.DRAIN

    def drain(self, order: DrainOrder) -> None:
        """Begin to drain. Only an interruption or a refusal changes a drain that has begun."""
        current = self.drain_order
        is_urgent = order.cause is ReleaseCause.INTERRUPTED and self.release_cause is not order.cause
        is_refused = bool(order.exit_code)
        if current is None or is_urgent or is_refused:
            self.drain_order = order
            self.drain_requested.set()
            self.heartbeat_due.set()

    def take_order(self, order: ModelOrder | None) -> None:
        """Take the order of a response to a heartbeat; `None` takes the last one back."""
        if order != self.order:
            self.order = order
            self.order_changed.set()

    def cut_claim(self) -> None:
        """Give up the claim under way.

        An engine has died, and what it held must not come straight back, or other jobs are wanted now.
        """
        if self.claim is not None:
            self.claim.cancel()

    def end(self, exit_code: int) -> None:
        """End the agent; only the first exit code counts."""
        if not self.exit_code.done():
            self.exit_code.set_result(exit_code)

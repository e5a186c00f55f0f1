"""The jobs of a worker, from their leases to their ends: what the loops, and the engines, tell of them."""

from collections.abc import Sequence
from typing import assert_never

from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.jobs.adapter_fetcher import FetchAdapter, no_store
from diffuserve.agent.jobs.claim_gate import ClaimGate
from diffuserve.agent.jobs.job_entry import JobEntry
from diffuserve.agent.jobs.job_exit import JobExit
from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.reporting.job_spans import JobSpans
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.agent.state.held_states import HeldState, JobCommand
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import RequestAborted
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.workers.worker import Heartbeat, Lease
from diffuserve.protocol.messages import (
    AbortJob,
    CheckpointReady,
    EngineReport,
    FilterVerdict,
    JobDenoised,
    JobFailed,
    JobFinished,
    JobMessage,
    LiveDropped,
    LivePart,
    PreemptJob,
    PreviewReady,
    StepProgress,
    StepTaken,
)


class EngineJobs:
    """Adds jobs to the engines, follows them there, and takes them out: finished, canceled or lost."""

    def __init__(  # noqa: PLR0913 (what it stands between)
        self,
        client: LeaseClient,
        state: AgentState,
        models: ServedModels,
        gate: ClaimGate,
        reporter: ResultReporter,
        metrics: WorkerMetrics,
        checkpoint_seconds: float = 0.0,
        spans: JobSpans | None = None,
        fetch_adapter: FetchAdapter = no_store,
    ) -> None:
        spans = spans or JobSpans()
        self._state, self._models, self._gate = state, models, gate
        self._reporter, self._metrics, self._spans = reporter, metrics, spans
        self._exit = JobExit(state, gate, reporter, metrics, spans)
        self._entry = JobEntry(client, state, models, self._exit, checkpoint_seconds, spans, fetch_adapter)

    def add(self, lease: Lease) -> None:
        """Hand a leased job to the engine of its model, once that is loaded, or else straight back."""
        self._state.num_taken += 1
        model = self._entry.model_of(lease)
        if model is None:
            self._entry.refuse(lease)
            return
        self.drop(lease.job_id)  # of an earlier lease whose loss is not known here yet
        self._entry.add(lease, model)
        self._gate.update()

    def begin_awaiting(self, model: ServedModel) -> None:
        """Hand the jobs that waited for a model to its engine, which is ready."""
        self._entry.begin_awaiting(model)

    def handle(self, message: EngineReport) -> None:
        """Handle a message of the engine."""
        if isinstance(message, StepTaken):
            jobs = map(self._state.job_in_engine, message.attempts)
            self._spans.step(message, [job for job in jobs if job is not None])
        else:
            self._follow(message)

    def cancel(self, job_id: str) -> None:
        """Stop a job wherever it is, and report that."""
        job = self._state.held.get(job_id)
        if job is None or JobCommand.CANCEL in job.commands:
            return
        job.commands.add(JobCommand.CANCEL)
        aborted = JobFailed(attempt=job.attempt, code=RequestAborted.code, message="aborted")
        if self._entry.stop(job):
            self._exit.leave(job, aborted)
        elif self._reporter.take_back(job):
            self._exit.report(job, aborted)
        else:
            self._abort(job)

    def drop_lost(self, lost: Sequence[str], heartbeat: Heartbeat) -> None:
        """Drop the leases that the response to `heartbeat` reports as lost.

        A job may have been leased to this worker again while the heartbeat was under way; the token that
        the heartbeat named tells the two leases apart.
        """
        tokens = {held.job_id: held.lease_token for held in heartbeat.held}
        for job_id in lost:
            if job_id in self._state.held and self._state.held[job_id].lease.lease_token == tokens[job_id]:
                self.drop(job_id)

    def drop(self, job_id: str) -> None:
        """Stop a job whose lease was lost, and report nothing more: another worker may hold it."""
        job = self._state.held.get(job_id)
        if job is not None and job.is_in_engine:
            self._stop(job)
            self._exit.lose(job)

    def preempt_all(self) -> bool:
        """Ask the engine for last checkpoints of jobs worth one; each job is released with its checkpoint.

        Return whether any of these checkpoints are still outstanding.
        """
        kept = [job for job in self._state.jobs_in_engine if job.step and job.checkpoint_seconds]
        for job in kept:
            self._preempt(job)
        return bool(kept)

    def preempt(self, attempt: str) -> None:
        """Preempt a job for a more urgent one: stop it after its step, and release it.

        A job that is canceled, or that has left the engine, ends soon by itself.
        """
        job = self._state.held.get(attempt.rpartition("-")[0])
        if job is None or job.attempt != attempt or JobCommand.PREEMPT in job.commands:
            return
        job.commands.add(JobCommand.PREEMPT)
        if not job.is_in_engine or JobCommand.CANCEL in job.commands:
            return
        if self._entry.stop(job):
            self._exit.release(job)
        else:
            self._preempt(job)

    def release_unfinished(self, patience_seconds: float) -> None:
        """Release the jobs that are in the engine or wait for the artifact store, at the end of a drain."""
        for job in list(self._state.held.values()):
            if job.is_in_engine:
                self._stop(job)
            elif not self._reporter.take_back(job):
                continue
            self._exit.release_at_once(job, patience_seconds)

    def release_all_of_dead_engine(self, model: ServedModel) -> None:
        """Release the jobs inside an engine that died; jobs that had left it are still delivered.

        If the crash record names the jobs that the engine was working on, the death counts only against
        those. The others, and jobs that had not entered the engine yet, are released as bystanders.
        """
        inside = [job for job in self._state.held_for(model.name) if job.is_in_engine]
        attempts = frozenset() if model.engine is None else model.engine.suspects
        suspects = [job for job in inside if job.attempt in attempts]
        for job in inside:
            is_suspect = job in suspects
            is_bystander = self._entry.stop(job) or (bool(suspects) and not is_suspect)
            self._exit.release_of_dead_engine(job, is_suspect, is_bystander)

    def close(self) -> None:
        """Delete what was not delivered."""
        self._exit.close()

    def _follow(self, message: JobMessage) -> None:
        """Follow a message about one job; one about a lost lease only removes its files."""
        if isinstance(message, FilterVerdict):
            self._metrics.judged(message)
            return
        job = self._state.job_in_engine(message.attempt)
        if job is None:
            if isinstance(message, JobFinished | JobDenoised | JobFailed):
                self._models.drop_folder(message.attempt)
            return
        match message:
            case StepProgress():
                phase, frames = Phase(message.phase), (message.frames, message.num_frames)
                job.advance(phase, message.step, message.total, *frames)
            case PreviewReady():
                self._reporter.preview(job, message)
            case LivePart():
                self._reporter.live.part(job, message)
            case LiveDropped():
                self._reporter.live.drop(job)
            case CheckpointReady():
                self._keep(job, message)
            case JobFinished() | JobDenoised() | JobFailed():
                self._exit.leave(job, message)
            case _:
                assert_never(message)

    def _keep(self, job: HeldJob, ready: CheckpointReady) -> None:
        """Store a checkpoint, and release the job if it was preempted with it."""
        if ready.path:
            self._reporter.checkpoints.keep(job, ready)
        if ready.is_last:
            self._exit.release(job)

    def _preempt(self, job: HeldJob) -> None:
        if job.state is not HeldState.PREEMPTING:
            job.move_to(HeldState.PREEMPTING)
            self._models.send(job.lease.model, PreemptJob(attempt=job.attempt))

    def _stop(self, job: HeldJob) -> None:
        """Stop the work on a job; what the engine has is dropped with its folder once it lets go of it."""
        if self._entry.stop(job):
            self._models.drop_folder(job.attempt)
        else:
            self._abort(job)

    def _abort(self, job: HeldJob) -> None:
        self._models.send(job.lease.model, AbortJob(attempt=job.attempt))

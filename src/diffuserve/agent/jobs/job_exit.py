"""The way of held jobs out of a worker: delivered, failed, released or lost."""

import asyncio
import logging
from functools import cached_property

from diffuserve.agent.jobs.claim_gate import ClaimGate
from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.private_folder import PrivateFolder
from diffuserve.agent.reporting.job_spans import JobSpans
from diffuserve.agent.reporting.result_reporter import LEASE_LOST, ResultReporter
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.agent.state.held_states import HeldState, JobCommand
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.protocol.messages import JobDenoised, JobFailed, JobFinished

log = logging.getLogger(__name__)

JobEnd = JobFinished | JobDenoised | JobFailed


class JobExit:
    """Reports what became of jobs, and makes room for others."""

    def __init__(
        self,
        state: AgentState,
        gate: ClaimGate,
        reporter: ResultReporter,
        metrics: WorkerMetrics,
        spans: JobSpans,
    ) -> None:
        self._state, self._gate, self._reporter = state, gate, reporter
        self._metrics, self._spans = metrics, spans
        self._results = _ResultFolder()

    def leave(self, job: HeldJob, message: JobEnd) -> None:
        """Report a job that its engine has finished or failed, or that failed on its way there."""
        job.move_to(HeldState.LEFT)
        self.report(job, message)

    def report(self, job: HeldJob, message: JobEnd) -> None:
        """Report the end of a job that has left the engine."""
        self._spans.left_engine(job, message)
        if isinstance(message, JobFailed):
            self._reporter.failed(job, message)
        else:
            self._results.take(job)
            seconds = asyncio.get_running_loop().time() - job.since
            self._metrics.generated(job.lease.model, job.total, seconds)
            self._reporter.finished(job, message)
        self._gate.update()

    def release(self, job: HeldJob) -> None:
        """Release a job that the engine has let go of, or that waited for it."""
        job.move_to(HeldState.LEFT)
        was_preempted = JobCommand.PREEMPT in job.commands
        self._reporter.release(job, ReleaseCause.PREEMPTED if was_preempted else self._state.release_cause)
        self._gate.update()

    def refuse(self, job: HeldJob) -> None:
        """Release a job that this worker cannot begin."""
        job.move_to(HeldState.LEFT)
        self._reporter.release(job, self._state.release_cause)

    def release_at_once(self, job: HeldJob, patience_seconds: float) -> None:
        """Release a job at the end of a drain."""
        if job.is_in_engine:
            job.move_to(HeldState.LEFT)
        self._reporter.release(job, self._state.release_cause, patience_seconds=patience_seconds)

    def release_of_dead_engine(self, job: HeldJob, is_suspect: bool, is_bystander: bool) -> None:
        """Release a job that was inside an engine that died; its death may count against the job."""
        job.move_to(HeldState.LEFT)
        cause = ReleaseCause.BYSTANDER if is_bystander else ReleaseCause.WORKER_LOST
        self._reporter.release(job, cause, is_suspect=is_suspect)

    def lose(self, job: HeldJob) -> None:
        """Forget a job whose lease was lost, and report nothing more: another worker may hold it."""
        message = "job %s: the lease is lost; its work is dropped"
        log.warning(message, job.lease.job_id, extra=job.log_fields)
        self._metrics.lease_lost()
        self._spans.end(job, LEASE_LOST)
        job.move_to(HeldState.LEFT)
        self._gate.forget(job)

    def close(self) -> None:
        """Delete what was not delivered."""
        self._results.delete()


class _ResultFolder:
    """Moves the files of finished jobs out of their engine's folder, which is deleted with the engine.

    While the artifact store is unavailable they may wait here for hours, and engines may die or be unloaded
    meanwhile.
    """

    @cached_property
    def _folder(self) -> PrivateFolder:
        return PrivateFolder()

    def take(self, job: HeldJob) -> None:
        """Move a job's folder here. Both are on the file system of temporary files, so nothing is copied."""
        kept = self._folder.path / job.attempt
        try:
            job.folder.rename(kept)
        except OSError as error:
            log.warning("job %s: its files stay with the engine: %s", job.lease.job_id, error)
        else:
            job.folder = kept

    def delete(self) -> None:
        """Delete the folder and all undelivered files."""
        if "_folder" in vars(self):
            self._folder.delete()

"""The way of leased jobs into the engine processes and out of them."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

from diffuserve.agent.engines.engine_link import EngineLink
from diffuserve.agent.engines.engines import Engines
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.jobs.claim_gate import ClaimGate
from diffuserve.agent.jobs.input_fetcher import Fetched, InputFetcher, fetch_failure, needs_files
from diffuserve.agent.jobs.result_folder import ResultFolder
from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.reporting.job_spans import JobSpans
from diffuserve.agent.reporting.result_reporter import LEASE_LOST, ResultReporter
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import LeaseLost, RequestAborted
from diffuserve.domain.jobs.checkpoint import interval
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.workers.worker import Heartbeat, Lease, ReleaseCause
from diffuserve.protocol.messages import (
    AbortJob,
    AddJob,
    CheckpointReady,
    EngineReport,
    FilterVerdict,
    JobDenoised,
    JobFailed,
    JobFinished,
    JobMessage,
    LiveDropped,
    LivePart,
    PreviewReady,
    PutDownJob,
    StepProgress,
    StepTaken,
    ToEngine,
)

log = logging.getLogger(__name__)

_NO_FOLDER = Path("/nonexistent")  # of jobs that never reach an engine
_LONGEST_AWAITING_SECONDS = 300.0  # for a model; what is fetched of it by then is not fetched again


class EngineJobs:
    """Adds jobs to the engine, follows them there, and takes them out: finished, canceled or lost.

    A job whose model has yet to be loaded is added once that is, and one that reads images once they are
    fetched.
    """

    def __init__(  # noqa: PLR0913 (what it stands between)
        self,
        client: LeaseClient,
        state: AgentState,
        engines: Engines,
        gate: ClaimGate,
        reporter: ResultReporter,
        metrics: WorkerMetrics,
        checkpoint_seconds: float = 0.0,
        spans: JobSpans | None = None,
    ) -> None:
        self._results = ResultFolder()
        self._state, self._engines, self._gate = state, engines, gate
        self._reporter, self._metrics = reporter, metrics
        self._checkpoint_seconds = checkpoint_seconds
        self._spans = spans or JobSpans()
        self._fetcher = InputFetcher(client, self._fetched)

    def add(self, lease: Lease) -> None:
        """Hand a leased job, with its images, to the engine of its model, once that is loaded.

        While there can be none, or the worker drains, the job is handed straight back.
        """
        self._state.num_taken += 1
        model = self._engines.of(lease.model)
        is_possible = model is not None and (model.is_ready or self._engines.may_load(model))
        if model is None or not is_possible or self._state.is_draining:
            job = HeldJob(lease, _NO_FOLDER, is_in_engine=False, span=self._spans.begin(lease))
            self._state.held[lease.job_id] = job
            self._reporter.release(job, self._state.release_cause)
            return
        self.drop(lease.job_id)  # of an earlier lease whose loss is not known here yet
        self._engines.use(model)
        job = HeldJob(lease, _NO_FOLDER, span=self._spans.begin(lease))
        if model.is_ready:
            self._begin(job, model)
        else:
            self._await_model(job)
        self._gate.update()

    def _await_model(self, job: HeldJob) -> None:
        """Hold a job until its model is loaded, or for so long that others may do it sooner."""
        job.awaits_model = True
        job.advance(Phase.LOAD, 0, 0)
        self._state.held[job.lease.job_id] = job

        def give_up() -> None:
            if self._state.held.get(job.lease.job_id) is job and job.awaits_model:
                job.awaits_model = False
                self._hand_back(job)

        asyncio.get_running_loop().call_later(_LONGEST_AWAITING_SECONDS, give_up)

    def begin_awaiting(self, model: ServedModel) -> None:
        """Hand the jobs that waited for a model to its engine, which is ready."""
        for job in self._state.held_for(model.name):
            if job.awaits_model:
                self._begin(job, model)

    def _begin(self, job: HeldJob, model: ServedModel) -> None:
        """Fetch what a job reads, or hand it to the engine at once."""
        job.folder = _link_of(model).job_folder(job.attempt)
        if needs_files(job.lease):
            self._fetcher.start(job)
            job.awaits_model = False
            self._state.held[job.lease.job_id] = job
        else:
            self._enter_engine(job, {})

    def handle(self, message: EngineReport) -> None:
        """Follow a message of the engine."""
        if isinstance(message, StepTaken):
            jobs = map(self._state.job_in_engine, message.attempts)
            self._spans.step(message, [job for job in jobs if job is not None])
        else:
            self._follow(message)

    def _follow(self, message: JobMessage) -> None:
        """Follow a message about one job; one about a lost lease only removes its files."""
        if isinstance(message, FilterVerdict):
            self._metrics.judged(message)
            return
        job = self._state.job_in_engine(message.attempt)
        if job is None:
            if isinstance(message, JobFinished | JobDenoised | JobFailed):
                self._engines.drop_folder(message.attempt)
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
                self._kept(job, message)
            case JobFinished() | JobDenoised() | JobFailed():
                self._leave(job, message)
            case _:
                assert_never(message)

    def cancel(self, job_id: str) -> None:
        job = self._state.held.get(job_id)
        if job is None or job.is_canceling:
            return
        job.is_canceling = True
        if self._stop_before_engine(job) or self._reporter.take_back(job):
            self._leave(job, JobFailed(attempt=job.attempt, code=RequestAborted.code, message="aborted"))
        else:
            self._abort(job)

    def drop_lost(self, lost: Sequence[str], heartbeat: Heartbeat) -> None:
        """Drop the leases that the response to `heartbeat` calls lost.

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
            log.warning("job %s: the lease is lost; its work is dropped", job_id, extra=job.log_fields)
            self._metrics.lease_lost()
            self._spans.end(job, LEASE_LOST)
            self._stop(job)
            self._gate.forget(job)

    def put_down(self) -> bool:
        """Have the engine give last checkpoints of the jobs that are worth it; each is released with its own.

        Return whether it still has some to give.
        """
        kept = [job for job in self._state.jobs_in_engine if job.step and self._interval(job.lease)]
        for job in kept:
            self._put_down(job)
        return bool(kept)

    def preempt(self, attempt: str) -> None:
        """Make room for a more urgent job: put this one down after its step, and hand it back.

        One that is canceled, or that has left the engine, ends soon by itself.
        """
        job = self._state.held.get(attempt.rpartition("-")[0])
        if job is None or job.attempt != attempt or job.is_preempted:
            return
        job.is_preempted = True
        if not job.is_in_engine or job.is_canceling:
            return
        if self._stop_before_engine(job):
            self._hand_back(job)
        else:
            self._put_down(job)

    def _put_down(self, job: HeldJob) -> None:
        if not job.is_put_down:
            self._send(job, PutDownJob(attempt=job.attempt))
        job.is_put_down = True

    def _hand_back(self, job: HeldJob) -> None:
        """Release a job that the engine has let go of."""
        job.is_in_engine = False
        cause = ReleaseCause.PREEMPTED if job.is_preempted else self._state.release_cause
        self._reporter.release(job, cause)
        self._gate.update()

    def _interval(self, lease: Lease) -> float:
        return interval(lease.cost_seconds, self._checkpoint_seconds)

    def _kept(self, job: HeldJob, ready: CheckpointReady) -> None:
        """Store a checkpoint, and hand the job back if it was put down with it."""
        if ready.path:
            self._reporter.checkpoints.keep(job, ready)
        if ready.is_last:
            self._hand_back(job)

    def release_unfinished(self, patience_seconds: float) -> None:
        """Hand back what is in the engine, or waits for the artifact store, as at the end of a drain."""
        for job in list(self._state.held.values()):
            if job.is_in_engine:
                self._stop(job)
                job.is_in_engine = False
            elif not self._reporter.take_back(job):
                continue
            self._reporter.release(job, self._state.release_cause, patience_seconds=patience_seconds)

    def close(self) -> None:
        """Delete what was not delivered."""
        self._results.delete()

    def release_all_of_dead_engine(self, model: ServedModel) -> None:
        """Hand back what was inside an engine that died; jobs that had left it are still delivered.

        Where the crash record tells which jobs the engine was working on, its death counts against those
        alone, and the others are released as bystanders; so are those that had not entered it yet.
        """
        inside = [job for job in self._state.held_for(model.name) if job.is_in_engine]
        attempts = frozenset() if model.engine is None else model.engine.suspects
        suspects = [job for job in inside if job.attempt in attempts]
        for job in inside:
            job.is_in_engine = False
            was_outside = self._stop_before_engine(job)
            is_bystander = was_outside or (bool(suspects) and job not in suspects)
            cause = ReleaseCause.BYSTANDER if is_bystander else ReleaseCause.WORKER_LOST
            self._reporter.release(job, cause, is_suspect=job in suspects)

    def _enter_engine(self, job: HeldJob, files: Mapping[str, Path]) -> None:
        """Hand a job to the engine, which lives as long as the job's folder does."""
        lease = job.lease
        model = self._engines.of(lease.model)
        assert model is not None
        assert model.engine is not None
        if not self._state.has_engine_work(lease.model):
            model.engine.got_work()
        if job.awaits_model:
            job.load_seconds = asyncio.get_running_loop().time() - job.since
        job.awaits_model = False
        job.entered_at = time.time()
        self._state.held[lease.job_id] = job
        _link_of(model).send(
            AddJob(
                attempt=job.attempt,
                input=lease.input,
                folder=str(job.folder),
                priority=-lease.band.rank,
                is_alone=lease.is_suspect,
                num_previews=lease.num_previews,
                live=lease.live,
                output_format=lease.output_format,
                files={file_id: str(path) for file_id, path in files.items()},
                until=lease.until,
                checkpoint_seconds=self._interval(lease),
                log_names=job.log_names,
                is_traced=job.span.is_recorded,
            )
        )

    def _fetched(self, job: HeldJob, fetched: Fetched) -> None:
        """Go on with a job whose images are here, or end it without them."""
        if isinstance(fetched, LeaseLost):
            self.drop(job.lease.job_id)
        elif isinstance(fetched, Exception):
            self._leave(job, fetch_failure(job, fetched))
        else:
            job.load_seconds = asyncio.get_running_loop().time() - job.since
            job.advance(Phase.ENCODE, 0, 0)
            self._enter_engine(job, fetched)

    def _stop(self, job: HeldJob) -> None:
        """Stop the work on a job; what the engine has is dropped with its folder once it lets go of it."""
        if self._stop_before_engine(job):
            self._engines.drop_folder(job.attempt)
        else:
            self._abort(job)

    def _stop_before_engine(self, job: HeldJob) -> bool:
        """Stop a job that waits for its model or its files; return whether it did."""
        awaited, job.awaits_model = job.awaits_model, False
        return self._fetcher.stop(job) or awaited

    def _abort(self, job: HeldJob) -> None:
        self._send(job, AbortJob(attempt=job.attempt))

    def _send(self, job: HeldJob, message: ToEngine) -> None:
        """Send a message to the engine of a job's model, if there is one."""
        model = self._engines.of(job.lease.model)
        if model is not None and model.engine is not None and model.engine.link is not None:
            model.engine.link.send(message)

    def _leave(self, job: HeldJob, message: JobFinished | JobDenoised | JobFailed) -> None:
        job.is_in_engine = False
        self._spans.left_engine(job, message)
        if isinstance(message, JobFailed):
            self._reporter.failed(job, message)
        else:
            self._results.take(job)
            self._metrics.generated(job.lease.model, job.total, asyncio.get_running_loop().time() - job.since)
            self._reporter.finished(job, message)
        self._gate.update()


def _link_of(model: ServedModel) -> EngineLink:
    assert model.engine is not None
    assert model.engine.link is not None
    return model.engine.link

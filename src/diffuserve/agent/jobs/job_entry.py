"""The way of leased jobs into their engines: they wait for their models, and for what they read."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from diffuserve.agent.engines.engine_link import EngineLink
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.jobs.adapter_fetcher import FetchAdapter
from diffuserve.agent.jobs.input_fetcher import Fetched, InputFetcher, fetch_failure, needs_files
from diffuserve.agent.jobs.job_exit import JobExit
from diffuserve.agent.reporting.job_spans import JobSpans
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.agent.state.held_states import BEFORE_ENGINE, HeldState
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import LeaseLost
from diffuserve.domain.jobs.checkpoint import interval
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.workers.worker import Lease
from diffuserve.protocol.messages import AddJob

_NO_FOLDER = Path("/nonexistent")  # of jobs that never reach an engine
_LONGEST_AWAITING_SECONDS = 300.0  # for a model; what is fetched of it by then is not fetched again


class JobEntry:
    """Hands jobs to their engines. A job whose model has yet to be loaded enters once that is.

    One that reads images, or has adapters of the store, enters once they are fetched.
    """

    def __init__(  # noqa: PLR0913 (what it stands between)
        self,
        client: LeaseClient,
        state: AgentState,
        models: ServedModels,
        leaving: JobExit,
        checkpoint_seconds: float,
        spans: JobSpans,
        fetch_adapter: FetchAdapter,
    ) -> None:
        self._state, self._models, self._exit = state, models, leaving
        self._checkpoint_seconds, self._spans = checkpoint_seconds, spans
        self._fetcher = InputFetcher(client, fetch_adapter, self._fetched)

    def model_of(self, lease: Lease) -> ServedModel | None:
        """Return the model of a job if it may enter an engine here, now or once the model is loaded."""
        model = self._models.of(lease.model)
        if model is None or self._state.is_draining:
            return None
        return model if model.is_ready or self._models.may_load(model) else None

    def refuse(self, lease: Lease) -> None:
        """Release a job that may not enter an engine here."""
        self._exit.refuse(self._hold(lease))

    def add(self, lease: Lease, model: ServedModel) -> None:
        """Hand a job, with its images, to the engine of its model, once that is loaded."""
        self._models.use(model)
        job = self._hold(lease)
        if model.is_ready:
            self._begin(job, model)
        else:
            self._await_model(job)

    def begin_awaiting(self, model: ServedModel) -> None:
        """Hand the jobs that waited for a model to its engine, which is ready."""
        for job in self._state.held_for(model.name):
            if job.state is HeldState.AWAITS_MODEL:
                self._begin(job, model)

    def stop(self, job: HeldJob) -> bool:
        """Stop a job that waits for its model or its files; return whether it did."""
        self._fetcher.stop(job)
        return job.state in BEFORE_ENGINE

    def _hold(self, lease: Lease) -> HeldJob:
        seconds = interval(lease.cost_seconds, self._checkpoint_seconds)
        job = HeldJob(lease, _NO_FOLDER, checkpoint_seconds=seconds, span=self._spans.begin(lease))
        self._state.held[lease.job_id] = job
        return job

    def _await_model(self, job: HeldJob) -> None:
        """Hold a job until its model is loaded, or for so long that others may do it sooner."""
        job.move_to(HeldState.AWAITS_MODEL)
        job.advance(Phase.LOAD, 0, 0)

        def give_up() -> None:
            is_held = self._state.held.get(job.lease.job_id) is job
            if is_held and job.state is HeldState.AWAITS_MODEL:
                self._exit.release(job)

        asyncio.get_running_loop().call_later(_LONGEST_AWAITING_SECONDS, give_up)

    def _begin(self, job: HeldJob, model: ServedModel) -> None:
        """Fetch what a job reads, or hand it to the engine at once."""
        job.folder = _link_of(model).job_folder(job.attempt)
        if needs_files(job.lease):
            job.move_to(HeldState.FETCHING)
            self._fetcher.start(job)
        else:
            if job.state is HeldState.AWAITS_MODEL:
                job.load_seconds = asyncio.get_running_loop().time() - job.since
            self._enter_engine(job, {})

    def _fetched(self, job: HeldJob, fetched: Fetched) -> None:
        """Go on with a job whose images are here, or end it without them."""
        if isinstance(fetched, LeaseLost):
            self._models.drop_folder(job.attempt)
            self._exit.lose(job)
        elif isinstance(fetched, Exception):
            self._exit.leave(job, fetch_failure(job, fetched))
        else:
            job.load_seconds = asyncio.get_running_loop().time() - job.since
            job.advance(Phase.ENCODE, 0, 0)
            self._enter_engine(job, fetched)

    def _enter_engine(self, job: HeldJob, files: Mapping[str, Path]) -> None:
        """Hand a job to the engine, which lives as long as the job's folder does."""
        lease = job.lease
        model = self._models.of(lease.model)
        assert model is not None
        assert model.engine is not None
        if not self._state.has_engine_work(lease.model):
            model.engine.got_work()
        job.move_to(HeldState.IN_ENGINE)
        job.entered_at = time.time()
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
                checkpoint_seconds=job.checkpoint_seconds,
                log_names=job.log_names,
                is_traced=job.span.is_recorded,
                tenant=lease.tenant_id,
            )
        )


def _link_of(model: ServedModel) -> EngineLink:
    assert model.engine is not None
    assert model.engine.link is not None
    return model.engine.link

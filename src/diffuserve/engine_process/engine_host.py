"""Runs an engine for the agent; this process owns the model and the device, and uses no HTTP.

The main thread steps the engine, and the link's thread adds and aborts requests. Two more threads filter
images and write files, so that no step waits for them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import assert_never

import torch

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.models.description import shown
from diffuserve.domain.workers.worker import MAX_RESIDENT_ADAPTERS, LeaseEnd
from diffuserve.engine.engine import Engine
from diffuserve.engine.loading import LoadedModel, adapters_of, load_model
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine_process import device_memory
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.job_input import job_params
from diffuserve.engine_process.model.load_reporter import LoadReporter
from diffuserve.engine_process.model.prepared_model import prepared_copy
from diffuserve.engine_process.output.handover import LatentTransfer
from diffuserve.engine_process.output.image_output import ImageOutput, in_background, open_image_output
from diffuserve.engine_process.output.job_checkpoints import JobCheckpoints
from diffuserve.engine_process.output.job_output import EngineRequest, JobOutput, job_failure, preview_steps
from diffuserve.engine_process.output.writers import OrderedWriters
from diffuserve.engine_process.traced_steps import TracedSteps
from diffuserve.engine_process.warm_up import warm_up
from diffuserve.models.compiled.store import use_compiled_blocks
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.folders.folder import Companions
from diffuserve.models.machine.devices import choose_device, parse_dtype
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.weights.fingerprint import with_companions
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.crash_record import CrashRecord
from diffuserve.protocol.messages import (
    AbortJob,
    AddJob,
    EngineHeartbeat,
    EngineReady,
    PreemptJob,
    StepProgress,
    StopEngine,
    ToEngine,
)


@dataclass
class _Moves:
    """A counter of the engine's progress, incremented by several threads; a lost increment does no harm."""

    count: int = 0
    longest_step_seconds: float = 0.0
    last_step_seconds: float | None = None

    def stepped(self, seconds: float) -> None:
        self.count += 1
        self.last_step_seconds = seconds
        self.longest_step_seconds = max(self.longest_step_seconds, seconds)


@dataclass
class _Requests:
    """The requests inside the engine, by id and by job attempt. Safe from any thread."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    _by_id: dict[str, EngineRequest] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_id)

    def put(self, request_id: str, request: EngineRequest) -> None:
        """Add a request. The caller holds the lock."""
        self._by_id[request_id] = request
        self._ids[request.job.attempt] = request_id

    def get(self, request_id: str) -> EngineRequest:
        with self.lock:
            return self._by_id[request_id]

    def id_of(self, attempt: str) -> str | None:
        with self.lock:
            return self._ids.get(attempt)

    def attempts_of(self, request_ids: Sequence[str]) -> list[str]:
        """Return the attempts of those of the requests that are still in the engine."""
        with self.lock:
            return [self._by_id[known].job.attempt for known in request_ids if known in self._by_id]

    def pop(self, request_id: str) -> EngineRequest:
        with self.lock:
            request = self._by_id.pop(request_id)
            self._ids.pop(request.job.attempt, None)
        return request


class EngineHost:
    """Runs one engine for the agent at the other end of `link`."""

    def __init__(
        self,
        engine: Engine,
        link: AgentLink,
        images: ImageOutput,
        crash_record: CrashRecord | None = None,
    ) -> None:
        self._engine, self._link, self._images = engine, link, images
        self._crash_record = crash_record
        self._output = JobOutput(link, images)
        self._handover = LatentTransfer(engine.spec.name, images.weights_hash)
        self._checkpoints = JobCheckpoints(engine, link)
        self._writers = OrderedWriters()
        self._requests = _Requests()
        self._traced = TracedSteps(link, lambda request_id: self._requests.get(request_id).job)
        self._moves = _Moves()
        self._wake = threading.Event()
        self._is_stopping = False

    def run(self) -> None:
        """Step until stopped by a message; then the engine saves its cost fit."""
        self._engine.runner.on_work = self._note_work
        self._link.send(self._ready())
        with self._engine, self._writers as writers:
            while not self._is_stopping:
                self._wake.clear()
                start, began_at = time.monotonic(), time.time()
                outputs = self._engine.step()
                if not outputs:
                    self._wake.wait()
                    continue
                self._moves.stepped(seconds := time.monotonic() - start)
                self._traced.tell(outputs, began_at, seconds)
                self._report_progress(outputs)
                for output in outputs:
                    self._report(output, writers)

    def handle(self, message: ToEngine) -> None:
        """Handle a message of the agent; called on the link's thread."""
        match message:
            case AddJob():
                self._add(message)
            case AbortJob():
                self._abort(message.attempt)
            case PreemptJob():
                self._preempt(message.attempt)
            case StopEngine():
                self._is_stopping = True
            case _:
                assert_never(message)
        self._wake.set()

    def heartbeat(self) -> EngineHeartbeat:
        stats = self._engine.stats
        device = self._engine.pipeline.device
        return EngineHeartbeat(
            num_moves=self._moves.count,
            num_unfinished=len(self._requests),
            num_awaiting=self._engine.num_awaiting_adapters,
            memory_bytes=device_memory.used_bytes(device),
            memory_limit_bytes=device_memory.limit_bytes(device),
            last_step_seconds=self._moves.last_step_seconds,
            longest_step_seconds=self._moves.longest_step_seconds,
            predicted_seconds=self._engine.predicted_seconds,
            num_steps=stats.num_steps,
            num_request_steps=stats.num_request_steps,
            num_step_tokens=stats.num_step_tokens,
            denoise_seconds=stats.denoise_seconds,
            fit=self._engine.cost_model.told_fit,
            adapters=tuple(self._engine.resident_adapters[:MAX_RESIDENT_ADAPTERS]),
            adaptive_limit=self._engine.adaptive_limit,
            good_share=self._engine.good_share,
        )

    def _ready(self) -> EngineReady:
        image_filter, device = self._images.image_filter, self._engine.pipeline.device
        has_gpu = device.type == "cuda"
        return EngineReady(
            token_budget=self._engine.token_budget,
            num_gpus=self._engine.runner.num_ranks if has_gpu else 0,
            device_name=torch.cuda.get_device_name(device) if has_gpu else "",
            description={**shown(self._engine.describe()), "image_filter": self._images.describe()},
            image_filter=None if image_filter is None else image_filter.info,
            quantization=self._images.quantization,
            residency=self._engine.pipeline.residency,
            memory_limit_bytes=device_memory.limit_bytes(device),
        )

    def _add(self, job: AddJob) -> None:
        try:
            params = self._engine.spec.resolve(job_params(job), seed=0)
            if self._engine.spec.is_audio:
                self._output.check_sounds_leave(job)
            num_steps = self._engine.spec.num_steps(params)
            steps = preview_steps(num_steps, job.num_previews)
            given = self._handover.given(job, params)
            resume = self._checkpoints.given(job, params)
            with self._requests.lock:  # the first output may arrive before `add` returns
                request_id = self._engine.add(
                    params,
                    priority=job.priority,
                    preview=steps,
                    alone=job.is_alone,
                    until_denoised=job.until == LeaseEnd.LATENTS,
                    latents=given.tensor,
                    resume=resume,
                    stream_frames=True,
                    tenant=job.tenant,
                    files={name: Path(path) for name, path in job.files.items()},
                )
                if self._engine.awaits_adapters(request_id):  # before any other word of it
                    self._link.send(StepProgress(attempt=job.attempt, phase=Phase.LOAD, total=num_steps))
                clips = self._output.clips_of(request_id, job, params)
                timer = self._checkpoints.timer(job, params)
                request = EngineRequest(job, num_steps, timer, steps, given.timings, clips)
                self._requests.put(request_id, request)
        except Exception as error:  # any error of a job fails only that job
            self._link.send(job_failure(job.attempt, error))

    def _abort(self, attempt: str) -> None:
        request_id = self._requests.id_of(attempt)
        if request_id is not None:
            self._engine.abort(request_id)

    def _preempt(self, attempt: str) -> None:
        """Write a job's last checkpoint on a writer's thread, which waits for the step in progress."""
        request_id = self._requests.id_of(attempt)
        if request_id is None:
            return
        request = self._requests.get(request_id)
        work = partial(self._checkpoints.preempt, request_id, request.job, request.timer)
        self._writers.submit(f"{request_id} put down", work)

    def _keep(self, request_id: str, request: EngineRequest) -> None:
        """Take a checkpoint on this thread, between two steps, and write it on a writer's thread."""
        checkpoint = self._checkpoints.take(request_id, request.timer)
        if checkpoint is not None:
            work = partial(self._checkpoints.give, request.job, checkpoint, request.timer)
            self._writers.submit(request_id, work, is_clip=request.clips is not None)

    def _note_work(self, request_ids: Sequence[str]) -> None:
        """Record the requests that the engine is about to work on; called on its own threads."""
        if self._crash_record is not None:
            self._crash_record.note(self._requests.attempts_of(request_ids))

    def _report_progress(self, outputs: Sequence[StepOutput]) -> None:
        """Report the progress of all unfinished requests."""
        progress = [self._progress_of(output) for output in outputs if not output.finished]
        if progress:
            self._link.send(*progress)

    def _progress_of(self, output: StepOutput) -> StepProgress:
        return StepProgress(
            attempt=self._requests.get(output.request_id).job.attempt,
            phase=_phase_of(output),
            step=output.step,
            total=output.num_steps,
            frames=output.num_decoded,
            num_frames=output.num_frames,
        )

    def _report(self, output: StepOutput, writers: OrderedWriters) -> None:
        """Report an output; images go through the writers, a job's previews before its result."""
        if output.result is not None:
            is_clip = self._requests.get(output.request_id).clips is not None
            writers.submit(output.request_id, partial(self._finish, output.result), is_clip=is_clip)
        elif output.error is not None:
            self._report_error(output, output.error, writers)
        else:
            self._follow_step(output, writers)

    def _report_error(self, output: StepOutput, error: DiffuserveError, writers: OrderedWriters) -> None:
        """Report a failed request; for a clip, wait until its frames are written."""
        request, seconds = self._requests.pop(output.request_id), output.device_seconds
        if request.clips is None:
            self._link.send(job_failure(request.job.attempt, error, seconds))
        else:
            work = partial(self._output.fail_clips, request.job, request.clips, error, seconds)
            writers.submit(output.request_id, work, is_clip=True)

    def _follow_step(self, output: StepOutput, writers: OrderedWriters) -> None:
        """Take due checkpoints, write frames and show previews after a step."""
        request = self._requests.get(output.request_id)
        if _phase_of(output) == "denoise" and request.timer.is_due(time.monotonic()):
            self._keep(output.request_id, request)
        if output.chunk is not None:
            self._engine.hold_frames(output.request_id)  # until they are written
            writers.submit(output.request_id, partial(self._write_frames, request, output), is_clip=True)
        if output.latent_previews:
            work, is_clip = partial(self._output.show_previews, request, output), request.clips is not None
            writers.submit(output.request_id, work, is_clip=is_clip)

    def _write_frames(self, request: EngineRequest, output: StepOutput) -> None:
        """Filter and write frames of a clip, on a writer's thread; end the request if that fails."""
        assert request.clips is not None
        assert output.chunk is not None
        if not self._output.add_frames(request.job, request.clips, output.chunk):
            self._engine.abort(output.request_id)
        self._engine.release_frames(output.request_id)
        self._moves.count += 1

    def _finish(self, result: GenerationResult) -> None:
        """Write a result's files, or its latents; on a writer's thread."""
        request = self._requests.pop(result.request_id)
        if request.job.until == LeaseEnd.LATENTS:
            self._hand_over(request.job, result)
        else:
            self._output.finish(request, result)
        self._moves.count += 1

    def _hand_over(self, job: AddJob, result: GenerationResult) -> None:
        try:
            self._link.send(self._handover.write(job, result))
        except Exception as error:  # any error of a job fails only that job
            self._link.send(job_failure(job.attempt, error, result.timings.device_seconds))


def _phase_of(output: StepOutput) -> str:
    return "decode" if output.step >= output.num_steps else "denoise"


def load_host(config: EngineProcessConfig, link: AgentLink, model: LoadedModel | None = None) -> EngineHost:
    """Load the model, unless it is loaded, and meanwhile the image filter; then warm them up."""
    loading = LoadReporter(link)
    image_output = in_background(partial(open_image_output, config.model, config.images))
    if model is None:
        loading.begin_weights(config.model, config.parts)
        model = read_model(config, on_read=loading.add)
    read_hash = weights_hash_of(model.pipeline, image_output, model.companions)
    adapters = adapters_of(config.model, config.adapter_files)
    engine = Engine(
        model.pipeline,
        config.engine,
        read_weights_hash=read_hash,
        adapters=adapters,
        vocabulary=model.vocabulary,
    )
    return warm_host(engine, image_output, link, loading)


def read_model(
    config: EngineProcessConfig, is_strict: bool = False, on_read: Callable[[int], None] | None = None
) -> LoadedModel:
    """Load what an engine process of this configuration runs, from its prepared copy if there is one.

    With `is_strict` raise `NotPrepared` if there is none. Otherwise raise as `load_model` does.
    """
    plan = LoadPlan(
        choose_device(config.device),
        parse_dtype(config.dtype),
        config.engine.deterministic,
        parts=config.parts,
        quantization=config.quantization,
        offload=config.offload,
        copy=prepared_copy(config, is_strict),
        on_read=on_read,
        companions=companions_of(config.controlnets, config.image_prompter),
    )
    model = load_model(config.model, plan)
    if config.compiled and config.compiled_folder is not None:
        use_compiled_blocks(model.pipeline, config.compiled_folder)
    return model


def weights_hash_of(
    pipeline: Pipeline, image_output: Future[ImageOutput], companions: Companions
) -> Callable[[], str]:
    """Return what tells an engine's weights apart, once that is needed: images tell the model's alone."""
    return cache(lambda: with_companions(image_output.result().of(pipeline).fingerprint(), companions))


def warm_host(
    engine: Engine, image_output: Future[ImageOutput], link: AgentLink, loading: LoadReporter
) -> EngineHost:
    """Return the host of an engine that has drawn its first image."""
    loading.begin("image filter")
    images = image_output.result().of(engine.pipeline)
    loading.begin("warm-up")
    warm_up(engine, images)
    return EngineHost(engine, link, images, link.crash_record)

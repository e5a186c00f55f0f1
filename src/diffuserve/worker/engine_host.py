"""One engine, run for the agent: it owns the model and the device, and never touches HTTP.

The main thread steps the engine; the link's thread adds and aborts; two more look at images and
write files, so that no step waits for them.
"""

import base64
import io
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil
import torch
from PIL.Image import Image

from diffuserve.domain.errors import (
    DiffuserveError,
    NumericalFailure,
    OutOfMemory,
    OutputBlocked,
    RequestAborted,
)
from diffuserve.domain.params import GenerationParams
from diffuserve.domain.safety import Action, Verdict
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.models.base import Frames
from diffuserve.models.quiet import quiet_libraries
from diffuserve.models.registry import read_offer
from diffuserve.worker.agent_link import AgentLink
from diffuserve.worker.config import EngineProcessConfig, ImageOptions
from diffuserve.worker.crash_record import CrashRecord
from diffuserve.worker.image_output import ImageOutput, allowed, in_background, open_desk, passed
from diffuserve.worker.messages import (
    Abort,
    Add,
    Beat,
    Done,
    Failed,
    Hello,
    Judged,
    Message,
    Moved,
    Previewed,
    Ready,
    Stop,
)
from diffuserve.worker.writers import OrderedWriters

# Another try ends the same.
_FINAL_ERRORS = (ValueError, NumericalFailure, OutOfMemory, OutputBlocked, RequestAborted)


@dataclass(frozen=True)
class _Request:
    """A job inside the engine, and the steps after which it shows a preview."""

    job: Add
    preview_steps: Sequence[int] = ()


@dataclass
class _Moves:
    """Counted by several threads; lost counts do no harm, since only change matters."""

    count: int = 0
    longest_step_seconds: float = 0.0
    last_step_seconds: float | None = None

    def step(self, seconds: float) -> None:
        self.count += 1
        self.last_step_seconds = seconds
        self.longest_step_seconds = max(self.longest_step_seconds, seconds)


@dataclass
class EngineHost:
    """Runs one engine for the agent at the other end of `link`."""

    engine: Engine
    link: AgentLink
    desk: ImageOutput
    black_box: CrashRecord | None = None
    _requests: dict[str, _Request] = field(default_factory=dict)
    _request_ids: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _news: threading.Event = field(default_factory=threading.Event)
    _is_stopping: bool = False
    moves: _Moves = field(default_factory=_Moves)

    def run(self) -> None:
        """Step until told to stop; then the engine saves what it learnt."""
        self.engine.runner.on_work = self._note
        self.link.send(self._ready())
        with self.engine, OrderedWriters() as writers:
            while not self._is_stopping:
                self._news.clear()
                start = time.monotonic()
                outputs = self.engine.step()
                if not outputs:
                    self._news.wait()
                    continue
                self.moves.step(time.monotonic() - start)
                for output in outputs:
                    self._report(output, writers)

    def handle(self, message: Message) -> None:
        """What the agent says; called on the link's thread."""
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(message.attempt)
        elif isinstance(message, Stop):
            self._is_stopping = True
        self._news.set()

    def beat(self) -> Beat:
        stats = self.engine.stats
        device = self.engine.pipeline.device
        return Beat(
            num_moves=self.moves.count,
            num_unfinished=len(self._request_ids),
            memory_bytes=_memory_bytes(device),
            memory_limit_bytes=_memory_limit_bytes(device),
            last_step_seconds=self.moves.last_step_seconds,
            longest_step_seconds=self.moves.longest_step_seconds,
            num_steps=stats.num_steps,
            num_request_steps=stats.num_request_steps,
            fit=self.engine.cost_model.fit.to_dict(),
        )

    def _ready(self) -> Ready:
        image_filter = self.desk.image_filter
        return Ready(
            token_budget=self.engine.token_budget,
            description={**self.engine.describe(), "image_filter": self.desk.describe()},
            image_filter=None if image_filter is None else image_filter.info.to_dict(),
        )

    def _add(self, job: Add) -> None:
        try:
            params = self.engine.spec.resolve(GenerationParams(**job.input), seed=0)
            steps = _preview_steps(params.num_inference_steps or 1, job.num_previews)
            with self._lock:  # the first output may come before `add` has returned
                request_id = self.engine.add(
                    params, priority=job.priority, preview=bool(steps), alone=job.is_alone
                )
                self._requests[request_id] = _Request(job, steps)
                self._request_ids[job.attempt] = request_id
        except Exception as error:  # whatever is wrong with this job is its own affair
            self.link.send(_failed(job.attempt, error))

    def _note(self, request_ids: Sequence[str]) -> None:
        """Called on the threads that draw."""
        if self.black_box is not None:
            with self._lock:
                known = [self._requests[one] for one in request_ids if one in self._requests]
            self.black_box.note(one.job.attempt for one in known)

    def _abort(self, attempt: str) -> None:
        with self._lock:
            request_id = self._request_ids.get(attempt)
        if request_id is not None:
            self.engine.abort(request_id)

    def _report(self, output: StepOutput, writers: OrderedWriters) -> None:
        """Images go by way of the writers, a job's previews before its result."""
        if output.result is not None:
            writers.finish(output.request_id, partial(self._finish, output.result))
        elif output.error is not None:
            writers.forget(output.request_id)
            self.link.send(_failed(self._forget(output.request_id).job.attempt, output.error))
        else:
            self._move(output, writers)

    def _move(self, output: StepOutput, writers: OrderedWriters) -> None:
        with self._lock:
            request = self._requests[output.request_id]
        phase = "decode" if output.step >= output.num_steps else "denoise"
        step, total = output.step, output.num_steps
        self.link.send(Moved(attempt=request.job.attempt, phase=phase, step=step, total=total))
        if output.preview is not None and step in request.preview_steps:
            writers.submit(output.request_id, partial(self._show, request, output, output.preview))

    def _show(self, request: _Request, output: StepOutput, preview: Image) -> None:
        """A preview, if the filter lets it through; on a writer's thread."""
        attempt = request.job.attempt
        try:
            verdict = self._judge(attempt, "preview", [preview])
        except Exception:  # the image itself will meet the same filter, and its failure is told
            return
        if verdict.action is Action.BLOCK:
            return
        index = list(request.preview_steps).index(output.step)
        png = _png(allowed(preview, verdict))
        self.link.send(
            Previewed(attempt=attempt, index=index, step=output.step, total=output.num_steps, png=png)
        )

    def _finish(self, result: GenerationResult) -> None:
        """Filter and write; on a writer's thread."""
        request = self._forget(result.request_id)
        job, steps = request.job, result.params.num_inference_steps or 0
        verdicts: list[Verdict] = []
        try:
            self.link.send(Moved(attempt=job.attempt, phase="filter", step=steps, total=steps))
            verdicts += [self._judge(job.attempt, "image", frames) for frames in result.frames]
            shown = passed(result, verdicts)
            files = self.desk.write(shown, Path(job.folder), job.output_format)
        except Exception as error:  # at the border of a job: it fails alone
            self.link.send(replace(_failed(job.attempt, error), safety=self.desk.record(verdicts)))
            return
        self.moves.count += 1
        self.link.send(
            Done(
                attempt=job.attempt,
                files=files,
                input=result.params.to_dict(),
                timings=asdict(result.timings),
                actual_seconds=result.timings.device_seconds,
                warnings=shown.warnings,
                safety=self.desk.record(verdicts),
            )
        )

    def _judge(self, attempt: str, stage: str, frames: Frames) -> Verdict:
        """What the filter says, told to the agent too."""
        judged = self.desk.judge(frames)
        if self.desk.image_filter is not None:
            action, category = judged.verdict.action, judged.verdict.category
            news = Judged(
                attempt=attempt, stage=stage, action=action, category=category, seconds=judged.seconds
            )
            self.link.send(news)
        return judged.verdict

    def _forget(self, request_id: str) -> _Request:
        with self._lock:
            request = self._requests.pop(request_id)
            self._request_ids.pop(request.job.attempt, None)
        return request


def introduce(model: str, images: ImageOptions, link: AgentLink) -> Future[ImageOutput]:
    """Say what the model is; the image filter is loaded while the model is."""
    spec, fit = read_offer(model)
    link.send(Hello(spec=spec.to_dict(), fit=fit.to_dict(), num_gpus=torch.cuda.device_count()))
    return in_background(partial(open_desk, model, images))


def load_host(config: EngineProcessConfig, link: AgentLink) -> EngineHost:
    """Announce the model, then load it and, meanwhile, the image filter."""
    quiet_libraries()
    desk = introduce(config.model, config.images, link)
    engine = Engine.load(config.model, device=config.device, dtype=config.dtype, config=config.engine)
    return EngineHost(engine, link, desk.result(), link.black_box)


def _preview_steps(num_steps: int, num_previews: int) -> list[int]:
    """Evenly spread, never the last step: the image itself follows that."""
    wanted = (round(i * num_steps / (num_previews + 1)) for i in range(1, num_previews + 1))
    return sorted({step for step in wanted if 0 < step < num_steps})


def _failed(attempt: str, error: Exception) -> Failed:
    code = error.code if isinstance(error, DiffuserveError) else "internal_error"
    message = str(error) if isinstance(error, DiffuserveError) else f"{type(error).__name__}: {error}"
    return Failed(attempt=attempt, code=code, message=message, retryable=not isinstance(error, _FINAL_ERRORS))


def _png(image: Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _memory_bytes(device: torch.device) -> int:
    """What could not be given to another request; torch keeps freed memory for the next one."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return total - free - kept
    return int(psutil.Process().memory_info().rss)


def _memory_limit_bytes(device: torch.device) -> int:
    """The device's; 0 for a CPU, where the agent knows the limit of both processes."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else 0

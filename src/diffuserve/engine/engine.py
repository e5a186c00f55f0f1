"""The engine: it takes requests, steps them together and returns images.

One thread steps (the caller's, or the driver's once `submit` was used), another decodes. `add` and
`abort` only leave a message for the stepping thread, so they are safe from any thread at any time.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

from diffuserve.domain.errors import DiffuserveError, EngineClosed
from diffuserve.domain.models.cost import CostEstimate
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.admission import Request, admitted, new_state, params_of, resumed, with_pixels
from diffuserve.engine.checkpoint import Checkpoint, take
from diffuserve.engine.checkpoint_desk import CheckpointDesk
from diffuserve.engine.config import DEFAULT_MODEL, EngineConfig
from diffuserve.engine.core import EngineCore
from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.loading import LoadedModel, load_model, parse_plan
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.outputs import GenerationResult, StepOutput, outcome_of
from diffuserve.engine.request_state import NO_WISHES, RequestState, Wishes
from diffuserve.engine.stats import EngineStats
from diffuserve.models.base import Pipeline
from diffuserve.models.weights.fingerprint import hash_model

if TYPE_CHECKING:
    import torch

_RANDOM_SEEDS = 2**32


class Engine:
    """Step-level continuous batching over one pipeline.

    Drive it one way at a time: `generate`, or `add` and `step` by hand, or `submit` from asyncio.
    """

    def __init__(
        self, pipeline: Pipeline, config: EngineConfig | None = None, runner: ModelRunner | None = None
    ) -> None:
        """Start the decoder. `runner` runs the model, by default in this process alone."""
        self.pipeline = pipeline
        self.config = config or EngineConfig()
        self.runner = runner or ModelRunner(pipeline)
        self._core = EngineCore(self.runner, self.config, on_decoded=self._announce)
        self._stepping = threading.Lock()  # held by the thread that calls the core
        self._desk = CheckpointDesk(self._stepping, self._take)
        self.read_weights_hash: Callable[[], str] = lambda: ""  # set by whoever knows the model's folder
        self._undelivered: list[StepOutput] = []
        self._driver: threading.Thread | None = None

        self._wakeup = threading.Condition()  # guards the messages to the stepping thread:
        self._has_messages = False
        self._inbox: list[RequestState] = []
        self._aborts: list[str] = []
        self._unfinished: dict[str, Future[GenerationResult]] = {}
        self._arrivals = 0
        self._closed = False

    @classmethod
    def load(  # noqa: PLR0913 (each has a default of its own)
        cls,
        model: str | Path = DEFAULT_MODEL,
        *,
        device: str | None = None,
        dtype: "str | torch.dtype | None" = None,
        config: EngineConfig | None = None,
        parts: Parts = ALL_PARTS,
        quantization: str | None = None,
        offload: str | None = None,
    ) -> "Engine":
        """Load a bundled model, a diffusers folder or a hub id; a `Path` is always a folder.

        Without the `parts` for decoding, requests must end `until_denoised`; without those for denoising,
        they must bring `latents`. `device` is "cpu" or "cuda[:n]" (default: CUDA if there is a device).
        `dtype` is "bfloat16", "float16" or "float32", for short "bf16", "fp16" or "fp32", or torch's own; by
        default the checkpoint's, but on a CPU bf16 only where it has the instructions, and else float32.
        `quantization` is "none", "int8", "fp8" or "int4"; by default the folder's own. `offload` is "none",
        "text", "model" or "layers". Raises `ModelNotFound`, `InvalidModel`, `DeviceUnavailable`.
        """
        config = config or EngineConfig()
        plan = parse_plan(device, dtype, quantization, offload, config.deterministic, parts)
        return cls.of(load_model(model, plan), config)

    @classmethod
    def of(cls, model: LoadedModel, config: EngineConfig) -> "Engine":
        """Return an engine that runs a loaded model."""
        engine = cls(model.pipeline, config)
        engine.read_weights_hash = cache(partial(hash_model, model.name, model.pipeline.quantization))
        return engine

    @property
    def spec(self) -> ModelSpec:
        return self.pipeline.spec

    @property
    def stats(self) -> EngineStats:
        return self._core.stats

    @property
    def cost_model(self) -> CostModel:
        return self._core.cost_model

    @property
    def token_budget(self) -> int:
        """Tokens that may share one denoising step."""
        return self._core.token_budget

    @property
    def predicted_seconds(self) -> float:
        """Seconds that the work of this moment should take."""
        return self._core.predicted_seconds

    @property
    def num_unfinished(self) -> int:
        """Number of requests that were added and have no outcome yet."""
        return len(self._unfinished)

    def describe(self) -> Mapping[str, str]:
        """Return the choices made for this model and machine (dtype, kernel, budget…), for display."""
        return {**self.pipeline.describe(), "token_budget": f"{self.token_budget:,}"}

    def estimate(self, params: GenerationParams) -> CostEstimate:
        """Predict the device-seconds of a request that has the device to itself.

        Raise `InvalidParams` if the model cannot do what is asked.
        """
        resolved = self.spec.resolve(with_pixels(params), seed=0)
        return self.cost_model.estimate(self.spec.workload(resolved))

    def add(  # noqa: PLR0913 (each has a default of its own)
        self,
        params: GenerationParams,
        *,
        priority: int = 0,
        preview: bool | Collection[int] = False,
        alone: bool = False,
        stream_frames: bool = False,
        until_denoised: bool = False,
        latents: "torch.Tensor | None" = None,
        resume: Checkpoint | None = None,
    ) -> str:
        """Queue a request and return its id; larger `priority` goes first. Safe from any thread.

        With `preview` the outputs of its steps have previews; numbers, from 1 on, choose some of the steps.
        A request that is `alone` shares no step with others. With `stream_frames` the frames of clips come
        as `StepOutput.chunk` before the request is finished, and its result has none.

        A request `until_denoised` ends after its last step, with the latents in its result. One with such
        `latents`, of this engine or of another with the same model, is only decoded.

        One with a checkpoint to `resume` goes on after its step: raise `CheckpointUnusable` if it is of
        other weights, parameters or another model.

        Raise `InvalidParams` before any work if the model cannot do what is asked, and `EngineClosed`.
        """
        wishes = Wishes(
            priority=priority,
            preview=preview if isinstance(preview, bool) else frozenset(preview),
            alone=alone,
            stream_frames=stream_frames,
            until_denoised=until_denoised,
        )
        request_id, _ = self._enqueue(params, wishes, latents, resume)
        return request_id

    def checkpoint(self, request_id: str) -> Checkpoint:
        """Return a request between two steps, to `resume` in an engine with these weights; it goes on here.

        Safe from any thread. Raise `NoCheckpoint` if it has done no step yet or has ended.
        """
        self.read_weights_hash()  # on this thread: the first time it may take long
        return self._desk.ask(request_id, self._announce)

    def hold_frames(self, request_id: str) -> None:
        """Keep back the frames of a request: a chunk of it is not consumed yet. Safe from any thread.

        A chunk counts as consumed once `step` has returned it. Whoever hands it to another thread calls
        this before the next `step`, and `release_frames` when that thread is done with it: a clip that has a
        few chunks that nobody has consumed waits with its next one, while other requests go on.
        """
        self._core.hold_frames(request_id)

    def release_frames(self, request_id: str) -> None:
        """Take back one `hold_frames`; it does nothing for a request that has ended. Safe from any thread."""
        self._core.release_frames(request_id)

    def abort(self, request_id: str) -> bool:
        """Stop a request before its next step; `False` if it is unknown or finished."""
        with self._wakeup:
            if request_id not in self._unfinished:
                return False
            self._aborts.append(request_id)
        self._announce()
        return True

    def step(self) -> list[StepOutput]:
        """Advance the requests that the scheduler picks by one denoising step.

        Blocks while only decodes are outstanding, or requests wait for company; returns an empty list when
        there is nothing to do.
        """
        if self._driver is not None:
            raise RuntimeError("this engine is driven by submit(); it cannot be stepped by hand as well")
        if self._undelivered:
            outputs, self._undelivered = self._undelivered, []
            return outputs
        return self._step()

    # A string is also a sequence of strings, for type checkers; the first match counts.
    @overload
    def generate(self, params: Request) -> GenerationResult: ...  # type: ignore[overload-overlap]
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, params: Request, return_exceptions: Literal[True]
    ) -> GenerationResult | DiffuserveError: ...
    @overload
    def generate(self, params: Sequence[Request]) -> list[GenerationResult]: ...
    @overload
    def generate(
        self, params: Sequence[Request], return_exceptions: Literal[True]
    ) -> list[GenerationResult | DiffuserveError]: ...
    def generate(
        self, params: Request | Sequence[Request], return_exceptions: bool = False
    ) -> GenerationResult | DiffuserveError | Sequence[GenerationResult | DiffuserveError]:
        """Generate requests together: a result for one request, a list in order for several.

        A string is a prompt, and everything else the model's default. A request that fails does not
        touch the others. Its exception is raised once all are done, or takes its place in the list with
        `return_exceptions`.
        """
        if isinstance(params, str | GenerationParams):
            return self._generate([params], return_exceptions)[0]
        return self._generate(params, return_exceptions)

    async def submit(self, params: GenerationParams, *, priority: int = 0) -> GenerationResult:
        """Generate one request from asyncio; cancelling the task aborts it."""
        request_id, future = self._enqueue(params, Wishes(priority=priority))
        self._start_driver()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.abort(request_id)
            raise

    def close(self) -> None:
        """Stop both threads; unfinished requests fail with `EngineClosed`."""
        with self._wakeup:
            if self._closed:
                return
            self._closed = True
        self._announce()
        if self._driver is not None:
            self._driver.join()
        with self._stepping:
            self._core.close()
            self._fail_all("the engine was closed")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _generate(
        self, wanted: Sequence[Request], return_exceptions: bool
    ) -> list[GenerationResult | DiffuserveError]:
        resolved = [self._resolve(params_of(request)) for request in wanted]  # refuse all before starting any
        requests = [self._enqueue(params) for params in resolved]
        try:
            self._run_until_done(dict(requests))
        except BaseException:
            for request_id, _ in requests:
                self.abort(request_id)
            raise
        outcomes = [outcome_of(future) for _, future in requests]
        failure = next((outcome for outcome in outcomes if isinstance(outcome, DiffuserveError)), None)
        if failure is not None and not return_exceptions:
            raise failure
        return outcomes

    def _resolve(
        self, params: GenerationParams, wishes: Wishes = NO_WISHES, decode_only: bool = False
    ) -> GenerationParams:
        seed = secrets.randbelow(_RANDOM_SEEDS)
        return admitted(self.pipeline, params, seed, self._core.memory_budget, wishes, decode_only)

    def _enqueue(
        self,
        params: GenerationParams,
        wishes: Wishes = NO_WISHES,
        latents: "torch.Tensor | None" = None,
        resume: Checkpoint | None = None,
    ) -> tuple[str, Future[GenerationResult]]:
        is_denoised = latents is not None or (resume is not None and resume.is_denoised)
        resolved = self._resolve(params, wishes, is_denoised)
        state = new_state(self.pipeline, resolved, wishes, latents)
        if resume is not None:
            resumed(state, self.pipeline, resume, self.read_weights_hash())
        with self._wakeup:
            if self._closed:
                raise EngineClosed("the engine is closed")
            self._arrivals += 1
            state.arrival = self._arrivals
            self._inbox.append(state)
            future = self._unfinished[state.request_id] = Future()
        self._announce()
        return state.request_id, future

    def _take(self, request_id: str) -> Checkpoint:
        return take(self.pipeline, self.read_weights_hash(), self._core.find(request_id))

    def _announce(self) -> None:
        with self._wakeup:
            self._has_messages = True
            self._wakeup.notify_all()

    def _wait_for_messages(self, timeout: float | None = None) -> None:
        with self._wakeup:
            self._wakeup.wait_for(lambda: self._has_messages or self._closed, timeout)

    def _step(self) -> list[StepOutput]:
        with self._stepping:
            while True:
                if self._closed:
                    raise EngineClosed("the engine is closed")
                with self._wakeup:
                    self._has_messages = False
                    arrived, self._inbox = self._inbox, []
                    aborted, self._aborts = self._aborts, []
                self._desk.respond()
                outputs = self._core.step(arrived, aborted)
                self._settle(outputs)
                if outputs or not self._core.goes_on:
                    return outputs
                self._wait_for_messages(self._core.seconds_to_wait)

    def _settle(self, outputs: list[StepOutput]) -> None:
        """Resolve the futures of what finished."""
        for output in outputs:
            if not output.finished:
                continue
            with self._wakeup:
                future = self._unfinished.pop(output.request_id)
            if not future.set_running_or_notify_cancel():
                continue
            if output.result is not None:
                future.set_result(output.result)
            else:
                future.set_exception(output.error)

    def _fail_all(self, reason: str) -> None:
        with self._wakeup:
            self._closed = True
            arrived, self._inbox = self._inbox, []
        outputs = self._core.fail_all(reason)
        for state in arrived:
            error = EngineClosed(f"request {state.request_id}: {reason}")
            outputs.append(state.output(finished=True, error=error))
        self._settle(outputs)

    def _run_until_done(self, requests: Mapping[str, Future[GenerationResult]]) -> None:
        if self._driver is not None:
            for future in requests.values():
                future.exception()  # blocks until it is done
            return
        while not all(future.done() for future in requests.values()):
            self._undelivered += [output for output in self._step() if output.request_id not in requests]

    def _start_driver(self) -> None:
        with self._wakeup:
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name="diffuserve-engine", daemon=True)
                self._driver.start()

    def _drive(self) -> None:
        try:
            while True:
                if not self._step():
                    self._wait_for_messages()
        except EngineClosed:
            return
        except BaseException as error:
            self._fail_all(f"the engine broke down ({type(error).__name__}: {error})")
            raise

"""The engine: takes requests, steps them together, hands out pictures.

One thread steps (the caller's, or the driver's once `submit` was used), one decodes. `add` and
`abort` only leave a note for the stepping thread, so they are safe from anywhere at any time.
"""

import asyncio
import secrets
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, Self, overload

from PIL.Image import Image
from torch import Tensor

from diffuserve.domain.cost import CostEstimate, CostFit
from diffuserve.domain.errors import (
    DiffuserveError,
    EngineClosed,
    InvalidParams,
    NumericalFailure,
    OutOfMemory,
    RequestAborted,
    RequestFailed,
)
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.cost_model import CostModel, load_fit, save_fit
from diffuserve.engine.decoder import Decoder
from diffuserve.engine.lanes import Lane, make_lanes
from diffuserve.engine.memory import memory_budget
from diffuserve.engine.model_runner import ModelRunner, is_out_of_memory
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.prompt_cache import PromptCache
from diffuserve.engine.request_state import RequestState
from diffuserve.engine.scheduler import StepLimits, StepScheduler
from diffuserve.engine.sharding import balanced_shards
from diffuserve.engine.stats import EngineStats
from diffuserve.models.base import Pipeline
from diffuserve.models.devices import choose_device, keep_freed_memory, parse_dtype
from diffuserve.models.registry import load_pipeline

_MIN_TOKEN_BUDGET, _MAX_TOKEN_BUDGET = 256, 65_536
_RANDOM_SEEDS = 2**32


@dataclass(frozen=True)
class Moved:
    """What one step made of a request."""

    latents: Tensor
    preview: Image | None


class Engine:
    """Step-level continuous batching over one pipeline.

    Drive it one way at a time: `generate`, or `add` and `step` by hand, or `submit` from asyncio.
    """

    def __init__(self, pipeline: Pipeline, config: EngineConfig | None = None) -> None:
        self.pipeline = pipeline
        self.config = config or EngineConfig()
        self.stats = EngineStats()
        self.cost_model = CostModel(self._first_fit())
        self._memory_budget = memory_budget(pipeline.device, self.config.memory_budget_bytes)
        self._scheduler = StepScheduler(self.config.ageing_steps)
        self._lanes = make_lanes(pipeline.device, self.config.num_threads, self.config.deterministic)
        self._runner = ModelRunner(pipeline)
        self._prompts = PromptCache(self.config.prompt_cache_size)
        self._decoder = Decoder(self._runner, self._lanes, self.cost_model, self._announce)

        self._news = threading.Condition()  # guards what other threads leave here, the next six
        self._has_news = False
        self._inbox: list[RequestState] = []
        self._aborts: set[str] = set()
        self._unfinished: set[str] = set()
        self._arrivals = 0
        self._closed = False

        self._stepping = threading.Lock()  # guards what only a step touches, the rest
        self._active: dict[str, RequestState] = {}
        self._decoding: dict[str, RequestState] = {}
        self._undelivered: list[StepOutput] = []
        self._driver: threading.Thread | None = None

    @classmethod
    def load(
        cls,
        model: str = "tiny-flux",
        *,
        device: str | None = None,
        dtype: str | None = None,
        config: EngineConfig | None = None,
    ) -> Self:
        """Load a bundled model, a diffusers folder or a hub id.

        `device` is "cpu" or "cuda[:n]" (default: CUDA where there is one). `dtype` is "bfloat16",
        "float16" or "float32"; by default the checkpoint's, but on a CPU bf16 only where it has the
        instructions, and else float32. Raises `ModelNotFound`, `InvalidModel`, `DeviceUnavailable`.
        """
        config = config or EngineConfig()
        chosen = choose_device(device)
        if chosen.type == "cpu":
            keep_freed_memory()
        return cls(load_pipeline(model, chosen, parse_dtype(dtype), config.deterministic), config)

    @property
    def spec(self) -> ModelSpec:
        return self.pipeline.spec

    @property
    def token_budget(self) -> int:
        """Tokens that may share a step: as set, else up to the knee of the cost model."""
        if self.config.token_budget is not None:
            return self.config.token_budget
        return min(max(self.cost_model.fit.knee_tokens(), _MIN_TOKEN_BUDGET), _MAX_TOKEN_BUDGET)

    def describe(self) -> Mapping[str, str]:
        """What was chosen for this model and machine, for people to read."""
        return self.pipeline.describe() | {"token_budget": f"{self.token_budget:,}"}

    def estimate(self, params: GenerationParams) -> CostEstimate:
        """Predicted device-seconds of a request that has the device to itself."""
        resolved = self.spec.resolve(params, seed=0)
        return self.cost_model.estimate(self.pipeline.workload(resolved))

    def add(self, params: GenerationParams, *, priority: int = 0, preview: bool = False) -> str:
        """Queue a request and return its id; larger `priority` goes first. Safe from any thread.

        Raises `InvalidParams` before any work if the model cannot do what is asked.
        """
        return self._enqueue(params, priority=priority, preview=preview).request_id

    def abort(self, request_id: str) -> bool:
        """Stop a request before its next step; `False` if it is unknown or finished."""
        with self._news:
            if request_id not in self._unfinished:
                return False
            self._aborts.add(request_id)
        self._announce()
        return True

    def step(self) -> list[StepOutput]:
        """Advance the requests that the scheduler picks by one denoising step.

        Blocks while only decodes are outstanding; returns an empty list when there is nothing to do.
        """
        if self._driver is not None:
            raise RuntimeError("this engine is driven by submit(); it cannot be stepped by hand as well")
        if self._undelivered:
            outputs, self._undelivered = self._undelivered, []
            return outputs
        return self._step()

    @overload
    def generate(self, params: Sequence[GenerationParams]) -> list[GenerationResult]: ...
    @overload
    def generate(
        self, params: Sequence[GenerationParams], return_exceptions: Literal[True]
    ) -> list[GenerationResult | DiffuserveError]: ...
    def generate(
        self, params: Sequence[GenerationParams], return_exceptions: bool = False
    ) -> Sequence[GenerationResult | DiffuserveError]:
        """Generate all requests together; results in order.

        A request that fails does not touch the others. Its exception is raised once all are done,
        or takes its place in the list with `return_exceptions`.
        """
        resolved = [self._resolve(one) for one in params]  # refuse all before starting any
        futures = [Future[GenerationResult]() for _ in resolved]
        ids = [self._enqueue(one, future).request_id for one, future in zip(resolved, futures, strict=True)]
        try:
            self._run_until_done(futures, set(ids))
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        outcomes = [_outcome(future) for future in futures]
        failure = next((one for one in outcomes if isinstance(one, DiffuserveError)), None)
        if failure is not None and not return_exceptions:
            raise failure
        return outcomes

    async def submit(
        self, params: GenerationParams, *, priority: int = 0, preview: bool = False
    ) -> GenerationResult:
        """Generate one request from asyncio; cancelling the task aborts it."""
        future: Future[GenerationResult] = Future()
        state = self._enqueue(params, future, priority=priority, preview=preview)
        self._start_driver()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.abort(state.request_id)
            raise

    def close(self) -> None:
        """Stop both threads; unfinished requests fail with `EngineClosed`."""
        with self._news:
            if self._closed:
                return
            self._closed = True
        self._announce()
        if self._driver is not None:
            self._driver.join()
        self._decoder.close()
        self._lanes.close()
        for state in [*self._inbox, *self._active.values(), *self._decoding.values()]:
            _settle(state, EngineClosed(f"request {state.request_id}: the engine was closed"))
        self._active.clear()
        self._decoding.clear()
        if self.config.cost_fit_path is not None and self.cost_model.num_observed_steps:
            save_fit(self.config.cost_fit_path, self.cost_model.fit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- taking requests in ------------------------------------------------------------------

    def _first_fit(self) -> CostFit:
        path = self.config.cost_fit_path
        cached = load_fit(path) if path is not None else None
        return cached or self.pipeline.cost_prior()

    def _resolve(self, params: GenerationParams) -> GenerationParams:
        resolved = self.spec.resolve(params, secrets.randbelow(_RANDOM_SEEDS))
        needed = self.pipeline.step_bytes(self.pipeline.workload(resolved))
        if needed > self._memory_budget:
            size = f"{resolved.num_images} × {resolved.width}x{resolved.height}"
            raise InvalidParams(
                "size",
                size,
                f"a step would take about {needed >> 20:,} MiB and {self._memory_budget >> 20:,} MiB are free; "
                "ask for fewer or smaller pictures",
            )
        return resolved

    def _enqueue(
        self,
        params: GenerationParams,
        future: Future[GenerationResult] | None = None,
        *,
        priority: int = 0,
        preview: bool = False,
    ) -> RequestState:
        resolved = self._resolve(params)
        load = self.pipeline.workload(resolved)
        with self._news:
            if self._closed:
                raise EngineClosed("the engine is closed")
            self._arrivals += 1
            state = RequestState(
                request_id=uuid.uuid4().hex,
                params=resolved,
                load=load,
                step_bytes=self.pipeline.step_bytes(load),
                schedule=self.pipeline.schedule(resolved),
                priority=priority,
                arrival=self._arrivals,
                wants_preview=preview,
                future=future,
            )
            self._inbox.append(state)
            self._unfinished.add(state.request_id)
        self._announce()
        return state

    def _announce(self) -> None:
        with self._news:
            self._has_news = True
            self._news.notify_all()

    # -- stepping ----------------------------------------------------------------------------

    def _step(self) -> list[StepOutput]:
        with self._stepping:
            while True:
                outputs = self._take_in() + self._collect_decoded()
                chosen = self._choose()
                if chosen:
                    outputs += self._advance(chosen)
                if outputs or not self._decoder.outstanding:
                    return outputs
                self._wait_for_news()

    def _take_in(self) -> list[StepOutput]:
        """Admit what `add` and `abort` left since the last step."""
        with self._news:
            self._has_news = False
            arrived, self._inbox = self._inbox, []
            aborted, self._aborts = self._aborts, set()
        self._active |= {state.request_id: state for state in arrived}
        outputs = []
        for request_id in sorted(aborted):
            state = self._active.get(request_id) or self._decoding.get(request_id)
            if state is not None:
                self._decoder.drop(request_id)
                outputs.append(self._fail(state, RequestAborted(request_id, "aborted")))
        return outputs

    def _collect_decoded(self) -> list[StepOutput]:
        outputs = []
        for decoded in self._decoder.collect():
            state = decoded.state
            if state.request_id not in self._decoding:
                continue  # aborted while it was being decoded
            if isinstance(decoded.outcome, Exception):
                outputs.append(self._fail(state, decoded.outcome))
                continue
            assert state.conditioning is not None
            result = GenerationResult(
                request_id=state.request_id,
                params=state.params,
                frames=decoded.outcome,
                timings=state.watch.timings(),
                warnings=state.conditioning.warnings,
            )
            outputs.append(self._finish(state, result))
        return outputs

    def _choose(self) -> list[RequestState]:
        limits = StepLimits(self.token_budget, self._memory_budget)
        chosen = self._scheduler.select((state.candidate() for state in self._active.values()), limits)
        for request_id in self._active.keys() - set(chosen):
            self._active[request_id].skipped += 1
        return [self._active[request_id] for request_id in chosen]

    def _advance(self, chosen: list[RequestState]) -> list[StepOutput]:
        self._lanes.set_busy(Lane.DENOISE, True)
        outputs = self._encode(chosen)
        ready = [state for state in chosen if state.request_id in self._active]
        if ready:
            outputs += self._denoise(ready)
        self._lanes.set_busy(Lane.DENOISE, bool(self._active))
        return outputs

    def _encode(self, chosen: list[RequestState]) -> list[StepOutput]:
        """Encode the chosen that need it, with as many that wait behind them as fill a batch."""
        now = time.perf_counter()
        for state in chosen:
            state.watch.started = state.watch.started or now
        if all(state.conditioning is not None for state in chosen):
            return []
        waiting = [s for s in self._active.values() if s.conditioning is None and s not in chosen]
        needy = [state for state in chosen if state.conditioning is None] + waiting
        needy = needy[: max(len(chosen), self.config.encode_batch_size)]
        keys = {state.request_id: self.pipeline.conditioning_key(state.params) for state in needy}
        for state in needy:
            state.conditioning = self._prompts.get(keys[state.request_id])
        missing = {keys[s.request_id]: s for s in reversed(needy) if s.conditioning is None}
        failures = self._encode_missing(list(missing.values())) if missing else {}
        outputs = []
        for state in needy:
            key = keys[state.request_id]
            if key in failures:
                outputs.append(self._fail(state, failures[key]))
            else:
                state.conditioning = state.conditioning or self._prompts.get(key) or missing[key].conditioning
        return outputs

    def _encode_missing(self, states: list[RequestState]) -> dict[object, Exception]:
        params = [state.params for state in states]
        run = self._lanes.run(Lane.DENOISE, [lambda: self._runner.encode(params)])
        if run.share == 1.0:
            self.cost_model.observe_encode([state.load for state in states], run.seconds)
        failures: dict[object, Exception] = {}
        for state, outcome in zip(states, run.results[0], strict=True):
            key = self.pipeline.conditioning_key(state.params)
            state.watch.encode_seconds = run.seconds
            state.watch.device_seconds += run.device_seconds / len(states)
            if isinstance(outcome, Exception):
                failures[key] = outcome
            else:
                state.conditioning = outcome
                self._prompts.put(key, outcome)
        return failures

    def _denoise(self, states: list[RequestState]) -> list[StepOutput]:
        tokens = [state.load.step_tokens for state in states]
        shards = balanced_shards(states, tokens, self._lanes.num_seats(Lane.DENOISE))
        run = self._lanes.run(Lane.DENOISE, [partial(self._denoise_shard, shard) for shard in shards])
        loads = [state.load for state in states]
        for state, part in zip(states, self.cost_model.fit.step_shares(loads), strict=True):
            state.watch.device_seconds += run.device_seconds * part
        if run.share == 1.0:
            self.cost_model.observe_step(loads, run.seconds)
        self.stats.count_step(len(states), run.seconds)
        moved = [one for shard in run.results for one in shard]
        return [self._advance_state(state, outcome) for state, outcome in moved]

    def _denoise_shard(self, states: list[RequestState]) -> list[tuple[RequestState, Moved | Exception]]:
        for state in states:
            if state.latents is None:
                state.latents = self.pipeline.init_latents(state.params)
        predictions = self._runner.denoise([state.denoise_input() for state in states])
        return [
            (state, outcome if isinstance(outcome, Exception) else self._move(state, outcome))
            for state, outcome in zip(states, predictions, strict=True)
        ]

    def _move(self, state: RequestState, prediction: Tensor) -> Moved:
        """Latents one step along the request's own schedule, and a preview if it asked for one."""
        assert state.latents is not None
        sampler = self.pipeline.sampler
        sigma, next_sigma = state.schedule.sigmas[state.step : state.step + 2]
        preview = None
        if state.wants_preview:
            preview = self.pipeline.preview(sampler.clean(state.latents, prediction, sigma), state.params)
        return Moved(sampler.step(state.latents, prediction, sigma, next_sigma), preview)

    def _advance_state(self, state: RequestState, outcome: Moved | Exception) -> StepOutput:
        """Count the step; after the last one the request goes on to the decoder."""
        if isinstance(outcome, Exception):
            return self._fail(state, outcome)
        state.latents = outcome.latents
        state.step += 1
        if state.is_denoised:
            state.watch.denoised = time.perf_counter()
            self._decoding[state.request_id] = self._active.pop(state.request_id)
            self._decoder.put(state)
        return StepOutput(state.request_id, state.step, state.num_steps, outcome.preview)

    def _wait_for_news(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._has_news or self._closed)

    # -- ending requests ---------------------------------------------------------------------

    def _finish(self, state: RequestState, result: GenerationResult) -> StepOutput:
        self._forget(state)
        _settle(state, result)
        return StepOutput(state.request_id, state.step, state.num_steps, finished=True, result=result)

    def _fail(self, state: RequestState, cause: Exception) -> StepOutput:
        error = _as_failure(state.request_id, cause)
        self._forget(state)
        _settle(state, error)
        return StepOutput(state.request_id, state.step, state.num_steps, finished=True, error=error)

    def _forget(self, state: RequestState) -> None:
        self._active.pop(state.request_id, None)
        self._decoding.pop(state.request_id, None)
        state.latents = None
        with self._news:
            self._unfinished.discard(state.request_id)

    # -- driving -----------------------------------------------------------------------------

    def _run_until_done(self, futures: list[Future[GenerationResult]], ids: set[str]) -> None:
        while not all(future.done() for future in futures):
            if self._driver is not None:
                _outcome(next(future for future in futures if not future.done()))
                continue
            self._undelivered += [one for one in self._step() if one.request_id not in ids]

    def _start_driver(self) -> None:
        with self._news:
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name="diffuserve-engine", daemon=True)
                self._driver.start()

    def _drive(self) -> None:
        while not self._closed:
            if not self._step():
                self._wait_for_news()


def _as_failure(request_id: str, cause: Exception) -> DiffuserveError:
    if isinstance(cause, RequestFailed):
        return cause
    kind = RequestFailed
    if is_out_of_memory(cause):
        kind = OutOfMemory
    elif isinstance(cause, FloatingPointError):
        kind = NumericalFailure
    error = kind(request_id, f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause.with_traceback(None)  # frames would keep the request's tensors alive
    return error


def _settle(state: RequestState, outcome: GenerationResult | DiffuserveError) -> None:
    future = state.future
    if future is None or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, DiffuserveError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _outcome(future: Future[GenerationResult]) -> GenerationResult | DiffuserveError:
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, DiffuserveError)
    return error

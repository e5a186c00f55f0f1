"""One step of the engine, on one thread: who goes, what it costs, where each goes next."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from diffuserve.domain.errors import (
    DiffuserveError,
    EngineClosed,
    NumericalFailure,
    OutOfMemory,
    RequestAborted,
    RequestFailed,
)
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.decoder import Decoded, Decoder
from diffuserve.engine.lanes import Lane, make_lanes
from diffuserve.engine.memory import memory_budget
from diffuserve.engine.model_runner import ModelRunner, Moved, is_out_of_memory
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.prompt_encoder import PromptEncoder
from diffuserve.engine.request_state import RequestState
from diffuserve.engine.scheduler import StepLimits, StepScheduler
from diffuserve.engine.sharding import balanced_shards
from diffuserve.engine.stats import EngineStats

_MIN_SHARD_TOKENS = 384  # smaller shards spend more on their own overhead than a second core gives
_MIN_KNEE_TOKENS, _MAX_KNEE_TOKENS = 1_024, 65_536


class EngineCore:
    """The requests under way. Not thread-safe: one thread calls it at a time.

    `on_decoded` is called from the decoder's thread when finished images wait to be collected.
    """

    def __init__(self, runner: ModelRunner, config: EngineConfig, on_decoded: Callable[[], None]) -> None:
        pipeline = runner.pipeline
        self._config = config
        self.stats = EngineStats()
        self.memory_budget = memory_budget(pipeline.device, config.memory_budget_bytes)
        self.cost_model = CostModel.start(pipeline.cost_prior(), config.cost_fit_path)
        self._scheduler = StepScheduler(config.ageing_steps)
        self._lanes = make_lanes(pipeline.device, config.num_threads, config.deterministic)
        self._runner = runner
        self._prompts = PromptEncoder(self._runner, self._lanes, self.cost_model, config.prompt_cache_size)
        self._decoder = Decoder(self._runner, self._lanes, self.cost_model, on_decoded)
        self._active: dict[str, RequestState] = {}
        self._decoding: dict[str, RequestState] = {}

    @property
    def token_budget(self) -> int:
        """Tokens that may share a step: as set, else up to the cost model's knee on every seat."""
        if self._config.token_budget is not None:
            return self._config.token_budget
        knee = min(max(self.cost_model.fit.knee_tokens(), _MIN_KNEE_TOKENS), _MAX_KNEE_TOKENS)
        return knee * self._lanes.num_seats(Lane.DENOISE)

    @property
    def num_active(self) -> int:
        """Requests that wait or denoise."""
        return len(self._active)

    @property
    def num_decoding(self) -> int:
        return self._decoder.outstanding

    def step(self, arrived: Sequence[RequestState], aborted: Sequence[str]) -> list[StepOutput]:
        """Take requests in, collect finished images, run one denoising step if anybody needs one."""
        self._active |= {state.request_id: state for state in arrived}
        outputs = self._abort(aborted)
        outputs += [self._collect(one) for one in self._decoder.collect() if self._is_wanted(one)]
        chosen = self._choose()
        if chosen:
            outputs += self._advance(chosen)
        return outputs

    def fail_all(self, reason: str) -> list[StepOutput]:
        """End every request that is under way."""
        unfinished = [*self._active.values(), *self._decoding.values()]
        return [self._fail(one, EngineClosed(f"request {one.request_id}: {reason}")) for one in unfinished]

    def close(self) -> None:
        self._decoder.close()
        self._lanes.close()
        self._runner.close()
        if self._config.cost_fit_path is not None:
            self.cost_model.save(self._config.cost_fit_path)

    def _abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        outputs = []
        for request_id in request_ids:
            state = self._active.get(request_id) or self._decoding.get(request_id)
            if state is not None:
                self._decoder.drop(request_id)
                outputs.append(self._fail(state, RequestAborted(request_id, "aborted")))
        return outputs

    def _is_wanted(self, decoded: Decoded) -> bool:
        """Not if it was aborted while it was being decoded."""
        return decoded.state.request_id in self._decoding

    def _collect(self, decoded: Decoded) -> StepOutput:
        state = decoded.state
        if isinstance(decoded.outcome, Exception):
            return self._fail(state, decoded.outcome)
        assert state.conditioning is not None
        result = GenerationResult(
            request_id=state.request_id,
            params=state.params,
            frames=decoded.outcome,
            timings=state.watch.timings(),
            warnings=state.conditioning.warnings,
        )
        self._forget(state)
        return StepOutput(state.request_id, state.step, state.num_steps, finished=True, result=result)

    def _choose(self) -> list[RequestState]:
        limits = StepLimits(self.token_budget, self.memory_budget)
        chosen = self._scheduler.select((state.candidate() for state in self._active.values()), limits)
        for request_id in self._active.keys() - set(chosen):
            self._active[request_id].skipped += 1
        return [self._active[request_id] for request_id in chosen]

    def _advance(self, chosen: list[RequestState]) -> list[StepOutput]:
        self._lanes.set_busy(Lane.DENOISE, True)
        for state in chosen:
            state.watch.start()
        outputs = self._encode(chosen)
        ready = [state for state in chosen if state.conditioning is not None]
        if ready:
            outputs += self._denoise(ready)
        self._lanes.set_busy(Lane.DENOISE, bool(self._active))
        return outputs

    def _encode(self, chosen: list[RequestState]) -> list[StepOutput]:
        """Encode the chosen that need it, with as many that wait behind them as fill a batch."""
        needy = [state for state in chosen if state.conditioning is None]
        if not needy:
            return []
        room = max(0, self._config.encode_batch_size - len(needy))
        waiting = [s for s in self._active.values() if s.conditioning is None and s not in needy]
        failures = self._prompts.encode(needy + waiting[:room])
        return [self._fail(self._active[request_id], error) for request_id, error in failures.items()]

    def _denoise(self, states: list[RequestState]) -> list[StepOutput]:
        tokens = [state.load.step_tokens for state in states]
        seats = min(self._lanes.num_seats(Lane.DENOISE), max(1, sum(tokens) // _MIN_SHARD_TOKENS))
        shards = balanced_shards(states, tokens, seats)
        loads = [state.load for state in states]
        expected = self.cost_model.expected_step_seconds(loads)
        run = self._lanes.run(Lane.DENOISE, [partial(self._runner.step, one) for one in shards], expected)
        parts = self.cost_model.fit.step_shares(loads)
        for state, part in zip(states, parts, strict=True):
            state.watch.device_seconds += run.device_seconds * part
        if run.share == 1.0:  # the heaviest shard is what the others waited for
            heaviest = max(shards, key=lambda shard: sum(state.load.step_tokens for state in shard))
            self.cost_model.observe_step([state.load for state in heaviest], run.seconds)
        self.stats.count_step(len(states), run.seconds)
        return [
            self._move(state, outcome)
            for shard, outcomes in zip(shards, run.results, strict=True)
            for state, outcome in zip(shard, outcomes, strict=True)
        ]

    def _move(self, state: RequestState, outcome: Moved | Exception) -> StepOutput:
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

    def _fail(self, state: RequestState, cause: Exception) -> StepOutput:
        self._forget(state)
        error = _as_failure(state.request_id, cause)
        return StepOutput(state.request_id, state.step, state.num_steps, finished=True, error=error)

    def _forget(self, state: RequestState) -> None:
        self._active.pop(state.request_id, None)
        self._decoding.pop(state.request_id, None)
        self._runner.forget(state.request_id)


def _as_failure(request_id: str, cause: Exception) -> DiffuserveError:
    if isinstance(cause, RequestFailed | EngineClosed):
        return cause
    kind = RequestFailed
    if is_out_of_memory(cause):
        kind = OutOfMemory
    elif isinstance(cause, FloatingPointError):
        kind = NumericalFailure
    error = kind(request_id, f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause.with_traceback(None)  # frames would keep the request's tensors alive
    return error

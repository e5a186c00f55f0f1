"""The engine's step, on one thread: choose requests, run them, and pass on those that are denoised."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from PIL import Image
from torch import Tensor

from diffuserve.domain.errors import EngineClosed, RequestAborted
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.decode_queue import Decoded
from diffuserve.engine.decoder import Decoder
from diffuserve.engine.failures import as_failure
from diffuserve.engine.memory import memory_budget
from diffuserve.engine.model_runner import (
    ModelRunner,
    StepOutcome,
    TurnResult,
    fails_for_lack_of_room,
    finite,
)
from diffuserve.engine.outputs import FrameChunk, GenerationResult, StepOutput
from diffuserve.engine.prompt_encoder import PromptEncoder
from diffuserve.engine.request_state import RequestState
from diffuserve.engine.scheduler import Candidate, StepLimits, StepScheduler
from diffuserve.engine.sharding import balanced_shards
from diffuserve.engine.stages import Stage, make_stage_executor
from diffuserve.engine.stats import EngineStats
from diffuserve.engine.swapping import swap_in, swap_out
from diffuserve.models.frames import Frames

log = logging.getLogger(__name__)

_MIN_SHARD_TOKENS = 384  # smaller shards spend more on their own overhead than a second core gives
_MOST_CACHED = 1 / 8  # of the memory budget, for conditioning that nobody may ask for again
_MIN_KNEE_TOKENS, _MAX_KNEE_TOKENS = 1_024, 65_536


class EngineCore:
    """The requests in progress. Not thread-safe: its callers take turns.

    `on_decoded` is called from the decoder's thread when finished images wait to be collected.
    """

    def __init__(self, runner: ModelRunner, config: EngineConfig, on_decoded: Callable[[], None]) -> None:
        pipeline = runner.pipeline
        self._config = config
        self.stats = EngineStats()
        self.memory_budget = memory_budget(pipeline.device, config.memory_budget_bytes)
        self.cost_model = CostModel.start(pipeline.cost_prior(), config.cost_fit_path)
        self._scheduler = StepScheduler(config.ageing_steps, config.same_steps_only, config.max_wait_seconds)
        self._stages = make_stage_executor(pipeline.device, config.num_threads, config.deterministic)
        self._runner = runner
        self._denoises_one_by_one = pipeline.residency.mode.denoises_one_by_one
        cache_bytes = min(config.prompt_cache_bytes, int(self.memory_budget * _MOST_CACHED))
        self._prompts = PromptEncoder(self._runner, self._stages, self.cost_model, cache_bytes)
        self._decoder = Decoder(self._runner, self._stages, self.cost_model, self.memory_budget, on_decoded)
        self._active: dict[str, RequestState] = {}
        self._decoding: dict[str, RequestState] = {}
        self._predicted_seconds = 0.0
        self.collecting_seconds = 0.0
        self._has_run = False
        self._decode_again: list[RequestState] = []  # a part of `_decoding`: they ran out of memory in it

    @property
    def token_budget(self) -> int:
        """Tokens that may share a step: as configured, else the cost model's knee for every core slot."""
        if self._config.token_budget is not None:
            return self._config.token_budget
        knee = min(max(self.cost_model.knee_tokens(), _MIN_KNEE_TOKENS), _MAX_KNEE_TOKENS)
        return knee * self._stages.num_core_slots(Stage.DENOISE)

    @property
    def predicted_seconds(self) -> float:
        """Seconds that the work of this moment should take in all; 0 between steps. Safe from any thread."""
        return self._predicted_seconds + self._decoder.predicted_seconds

    @property
    def num_active(self) -> int:
        """Number of requests that wait or denoise."""
        return len(self._active)

    @property
    def num_decoding(self) -> int:
        """Number of requests that wait to be decoded or collected, or are being decoded."""
        return self._decoder.outstanding + len(self._decode_again)

    @property
    def goes_on(self) -> bool:
        """Return whether a step without outputs is followed by others, as one of turns alone is."""
        return bool(self._has_run or self.num_decoding or self.collecting_seconds)

    @property
    def seconds_to_wait(self) -> float | None:
        """Seconds until the next step, unless a message comes before; `None` to wait for one."""
        return 0.0 if self._has_run else self.collecting_seconds or None

    def step(self, arrived: Sequence[RequestState], aborted: Sequence[str]) -> list[StepOutput]:
        """Add requests, abort others, collect finished images, and run a denoising step if one is needed.

        While requests wait for company instead, `collecting_seconds` says how long they still may.
        Raise what no request is to blame for, such as an error of the stages: the engine is then broken.
        """
        for state in arrived:
            self._accept(state)
        outputs = self._abort(aborted)
        outputs += [self._collect(decoded) for decoded in self._decoder.collect() if self._is_wanted(decoded)]
        self._put_again()
        chosen = [] if self._decodes_exclusively() else self._choose()
        self.collecting_seconds = self._seconds_to_collect() if chosen else 0.0
        self._has_run = bool(chosen) and not self.collecting_seconds and self._may_start(chosen[0])
        self._decoder.give_way(chosen[0].wishes.priority if self._has_run else None)
        if self._has_run:
            self._count_skips(chosen)
            self._make_room(chosen)
            outputs += self._run(chosen)
        return outputs

    def find(self, request_id: str) -> RequestState | None:
        """Return a request in progress, between two steps of it."""
        return self._active.get(request_id) or self._decoding.get(request_id)

    def hold_frames(self, request_id: str) -> None:
        """Count a chunk as not yet consumed; safe from any thread."""
        self._decoder.hold(request_id)

    def release_frames(self, request_id: str) -> None:
        """Count a chunk as consumed; safe from any thread."""
        self._decoder.release(request_id)

    def fail_all(self, reason: str) -> list[StepOutput]:
        """Fail every request in progress with `EngineClosed`."""
        unfinished = [*self._active.values(), *self._decoding.values()]
        return [
            self._fail(state, EngineClosed(f"request {state.request_id}: {reason}")) for state in unfinished
        ]

    def close(self) -> None:
        """Stop the threads, and keep the cost fit where the configuration says so."""
        self._decoder.close()
        self._stages.close()
        self._runner.close()
        if self._config.cost_fit_path is not None:
            self.cost_model.save(self._config.cost_fit_path)

    def _accept(self, state: RequestState) -> None:
        if state.decode_only:
            self._decoding[state.request_id] = state
            self._decoder.put(state)
        else:
            self._active[state.request_id] = state

    def _abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        outputs = []
        for request_id in request_ids:
            state = self.find(request_id)
            if state is not None:
                self._decoder.drop(request_id)
                self._decode_again = [other for other in self._decode_again if other is not state]
                outputs.append(self._fail(state, RequestAborted(request_id, "aborted")))
        return outputs

    def _is_wanted(self, decoded: Decoded) -> bool:
        """Return `False` for a request that was aborted while it was being decoded, or has failed."""
        return decoded.state.request_id in self._decoding

    def _collect(self, decoded: Decoded) -> StepOutput:
        state = decoded.state
        if isinstance(decoded.outcome, FrameChunk):
            return _frames_output(state, decoded.outcome)
        if fails_for_lack_of_room(state, decoded.outcome):
            self._decode_again.append(state)
            return self._start_over(state)
        if isinstance(decoded.outcome, Exception):
            return self._fail(state, decoded.outcome)
        return self._finish(state, decoded.outcome)

    def _finish(self, state: RequestState, frames: list[Frames], latents: Tensor | None = None) -> StepOutput:
        encoded = () if state.conditioning is None else state.conditioning.warnings
        result = GenerationResult(
            request_id=state.request_id,
            params=state.params,
            frames=frames,
            timings=state.stopwatch.timings(),
            warnings=(*encoded, *self._runner.pipeline.spec.size_warnings(state.params)),
            latents=latents,
        )
        self._forget(state)
        return state.output(state.num_decoded, finished=True, result=result)

    def _choose(self) -> list[RequestState]:
        """Return the requests that take the next step, each with its turn."""
        limits = self._limits()
        chosen = self._scheduler.select(self._candidates(limits), limits)
        return [self._active[request_id].take_turn(limits.tokens) for request_id in chosen]

    def _candidates(self, limits: StepLimits) -> list[Candidate]:
        return [state.candidate(limits.tokens) for state in self._active.values()]

    def _limits(self) -> StepLimits:
        room = self.memory_budget - self._decoder.held_bytes - self._prompts.held_bytes
        return StepLimits(self.token_budget, room, self._config.max_batch_size)

    def _seconds_to_collect(self) -> float:
        """Return how long the requests that wait are still held back for company."""
        if not self._config.max_wait_seconds:
            return 0.0
        waited = time.perf_counter() - min(state.stopwatch.added for state in self._active.values())
        limits = self._limits()
        return self._scheduler.seconds_to_wait(self._candidates(limits), limits, waited)

    def _count_skips(self, chosen: list[RequestState]) -> None:
        limits = self._limits()
        for request_id in self._active.keys() - {state.request_id for state in chosen}:
            self._active[request_id].skipped += 1
        for state in chosen:
            tokens = state.workload.step_tokens
            state.skipped = self._scheduler.skipped_after_turn(state.skipped, tokens, limits)

    def _make_room(self, chosen: list[RequestState]) -> None:
        """Take the chosen requests' memory again, and have waiting ones give back theirs where it is short.

        For an exclusive request all of them do.
        """
        for state in chosen:
            swap_in(state, self._runner.pipeline.device)
        chosen_ids = {state.request_id for state in chosen}
        limits = self._limits()
        waiting = [each for each in self._candidates(limits) if each.request_id not in chosen_ids]
        held = sum(candidate.held_bytes for candidate in waiting)
        needed = sum(state.turn_bytes for state in chosen)
        excess = held if chosen[0].exclusive else held + needed - limits.step_bytes
        for request_id in self._scheduler.swapped_out(waiting, limits, excess):
            self._swap_out(self._active[request_id])

    def _swap_out(self, state: RequestState) -> None:
        self._prompts.drop(state)
        swap_out(state)
        self._runner.forget(state.request_id)
        self.stats.num_swapped_out += 1

    def _may_start(self, first: RequestState) -> bool:
        """Return `False` for an exclusive request while others are decoded; it starts after them."""
        return not (first.exclusive and self._decoder.outstanding)

    def _decodes_exclusively(self) -> bool:
        """Return whether a request has the device to itself for its decoding, or waits to have it."""
        return any(state.exclusive for state in self._decoding.values())

    def _put_again(self) -> None:
        """Decode a request that ran out of memory once more, once no other is being decoded."""
        if self._decode_again and not self._decoder.outstanding:
            self._decoder.put(self._decode_again.pop(0))

    def _start_over(self, state: RequestState) -> StepOutput:
        """Have a request that ran out of memory beside others do the same work again, by itself."""
        log.warning("request %s ran out of memory beside others; it is tried by itself", state.request_id)
        state.exclusive = True
        return state.output(state.num_decoded)

    def _run(self, chosen: list[RequestState]) -> list[StepOutput]:
        self._stages.set_busy(Stage.DENOISE, True)
        for state in chosen:
            state.stopwatch.start()
        self._predicted_seconds = self._predict(chosen)
        outputs = self._encode(chosen)
        ready = [state for state in chosen if state.conditioning is not None]
        if ready:
            outputs += self._denoise(ready)
        self._predicted_seconds = 0.0
        self._stages.set_busy(Stage.DENOISE, bool(self._active))
        return outputs

    def _predict(self, chosen: list[RequestState]) -> float:
        """Return the seconds that a step of these requests should take, their prompts and images included."""
        fit = self.cost_model.fit
        unencoded = [state.workload for state in chosen if state.conditioning is None]
        encoding = fit.encode_seconds(unencoded) if unencoded else 0.0
        return encoding + fit.step_seconds([state.turn_workload for state in chosen])

    def _encode(self, chosen: list[RequestState]) -> list[StepOutput]:
        """Encode the chosen requests without conditioning, and waiting ones until the batch is full.

        Those of a lower priority wait: they have no part in the step.
        """
        unencoded = [state for state in chosen if state.conditioning is None]
        if not unencoded:
            return []
        room = max(0, self._config.encode_batch_size - len(unencoded))
        if chosen[0].exclusive:
            room = 0
        waiting = [
            state
            for state in self._active.values()
            if state.conditioning is None
            and state.swapped_out is None
            and not state.exclusive
            and state not in unencoded
            and state.wishes.priority >= chosen[0].wishes.priority
        ]
        failures = self._prompts.encode(unencoded + waiting[:room])
        return [self._end(self._active[request_id], error) for request_id, error in failures.items()]

    def _denoise(self, states: list[RequestState]) -> list[StepOutput]:
        workloads = [state.turn_workload for state in states]
        tokens = [workload.step_tokens for workload in workloads]
        core_slots = self._stages.num_core_slots(Stage.DENOISE)
        # Weights that pass through the device serve one forward pass at a time, and best a large one.
        most = 1 if self._denoises_one_by_one else core_slots
        num_shards = min(most, max(1, sum(tokens) // _MIN_SHARD_TOKENS))
        shards = balanced_shards(states, tokens, num_shards)
        expected = self.cost_model.expected_step_seconds(workloads)
        run = self._stages.run(
            Stage.DENOISE,
            [partial(self._runner.step, shard) for shard in shards],
            expected,
            meanwhile=partial(self._prepare_next, states),
        )
        shares = self.cost_model.fit.step_shares(workloads)
        for state, share in zip(states, shares, strict=True):
            state.stopwatch.device_seconds += run.device_seconds * share
        if run.share == 1.0 and not _any_failed(run.results):
            # The heaviest shard is what the others waited for.
            of_shards = [[state.turn_workload for state in shard] for shard in shards]
            heaviest = max(of_shards, key=lambda shard: sum(workload.step_tokens for workload in shard))
            self.cost_model.observe_step(heaviest, run.seconds)
        self.stats.count_step(len(states), sum(tokens), run.seconds)
        advanced = [
            self._advance(state, outcome)
            for shard, outcomes in zip(shards, run.results, strict=True)
            for state, outcome in zip(shard, outcomes, strict=True)
        ]
        return [output for output in advanced if output is not None]

    def _prepare_next(self, stepping: Sequence[RequestState]) -> None:
        """Prepare the step that should come after the one that the device works on."""
        chosen, limits = {state.request_id for state in stepping}, self._limits()
        following = self._scheduler.select_after(self._candidates(limits), chosen, limits)
        for request_id in set(following) - chosen:  # the turns of the others are the device's just now
            self._active[request_id].take_turn(limits.tokens)
        self._runner.prepare([self._active[request_id] for request_id in following])

    def _advance(self, state: RequestState, outcome: StepOutcome) -> StepOutput | None:
        """Count the step after its last turn; pass the request on to the decoder after its last step."""
        if isinstance(outcome, Exception):
            return self._end(state, outcome)
        if isinstance(outcome, TurnResult):
            state.predicted += (outcome.prediction,)
            return None
        state.advance(outcome.latents, outcome.memory)
        if state.is_denoised:
            state.stopwatch.denoised = time.perf_counter()
            if state.wishes.until_denoised:
                return self._hand_over(state)
            self._decoding[state.request_id] = self._active.pop(state.request_id)
            self._decoder.put(state)
        previews = tuple(Image.fromarray(levels.numpy()) for levels in outcome.previews)
        return state.output(latent_previews=previews)

    def _hand_over(self, state: RequestState) -> StepOutput:
        """End a request with its latents."""
        assert state.latents is not None
        try:
            return self._finish(state, [], finite(state.latents).cpu())
        except FloatingPointError as error:
            return self._fail(state, error)

    def _end(self, state: RequestState, cause: Exception) -> StepOutput:
        """Fail a request, unless it may succeed by itself: then it stays active."""
        if fails_for_lack_of_room(state, cause):
            return self._start_over(state)
        return self._fail(state, cause)

    def _fail(self, state: RequestState, cause: Exception) -> StepOutput:
        self._forget(state)
        error = as_failure(state.request_id, cause)
        return state.output(state.num_decoded, finished=True, error=error)

    def _forget(self, state: RequestState) -> None:
        self._active.pop(state.request_id, None)
        self._decoding.pop(state.request_id, None)
        self._runner.forget(state.request_id)


def _frames_output(state: RequestState, chunk: FrameChunk) -> StepOutput:
    num_decoded = chunk.index * state.clip_frames + chunk.start + len(chunk.frames)
    return state.output(num_decoded, chunk=chunk if state.wishes.stream_frames else None)


def _any_failed(shards: Sequence[Sequence[StepOutcome]]) -> bool:
    """Return whether a request failed: such a step may have been cut short, or done in parts."""
    return any(isinstance(outcome, Exception) for outcomes in shards for outcome in outcomes)

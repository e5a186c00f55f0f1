"""The engine's step, on one thread: choose requests, run them, and queue the denoised ones for decoding."""

import time
from collections.abc import Callable, Sequence

from PIL import Image

from diffuserve.domain.errors import EngineClosed, RequestAborted
from diffuserve.domain.models.known_words import Vocabulary
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.costs.memory import memory_budget
from diffuserve.engine.decoding.decode_queue import Decoded
from diffuserve.engine.decoding.decoder import Decoder
from diffuserve.engine.outputs import FrameChunk, StepOutput
from diffuserve.engine.requests.phases import RequestPhase
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.requests.request_table import Requests
from diffuserve.engine.requests.swapping import begin_step, swap_out
from diffuserve.engine.runner import Runner, StepOutcome, TurnResult
from diffuserve.engine.stages import Stage, make_stage_executor
from diffuserve.engine.stats import EngineStats
from diffuserve.engine.steps.adaptive_steps import AdaptiveSteps
from diffuserve.engine.steps.budgets import Budgets
from diffuserve.engine.steps.denoising import Denoising
from diffuserve.engine.steps.endings import Endings
from diffuserve.engine.steps.prompt_encoder import PromptEncoder
from diffuserve.engine.steps.step_planner import StepPlanner

_MAX_CACHED = 1 / 8  # of the memory budget, for conditioning that nobody may ask for again


class EngineCore:
    """Leads each request through its phases. Not thread-safe, but for `decoder`: its callers take turns.

    `on_decoded` is called from the decoder's thread when finished images are ready to be collected,
    and `release` with the id of each request that ends.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        on_decoded: Callable[[], None],
        release: Callable[[str], None] = lambda _request_id: None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        pipeline = runner.pipeline
        adapter_bytes = config.adapter_bytes if pipeline.spec.max_adapters else 0
        memory_bytes = memory_budget(pipeline.device, config.memory_budget_bytes, adapter_bytes)
        cache_bytes = min(config.prompt_cache_bytes, int(memory_bytes * _MAX_CACHED))
        self._runner, self._cost_fit_path = runner, config.cost_fit_path
        self.stats = EngineStats()
        self.cost_model = CostModel.start(pipeline.cost_prior(), config.cost_fit_path)
        self._stages = make_stage_executor(pipeline.device, config.num_threads, config.deterministic)
        self._prompts = PromptEncoder(runner, self._stages, self.cost_model, cache_bytes)
        self._denoising = Denoising(runner, self._stages, self.cost_model, self.stats)
        self.decoder = Decoder(runner, self._stages, self.cost_model, memory_bytes, on_decoded)
        self.adaptive = AdaptiveSteps(config.slo, lambda: self.cost_model.fit, self.stats)
        self.budgets = Budgets(
            config, memory_bytes, self.cost_model, self._stages, self._prompts, self.decoder, self.adaptive
        )
        self.requests = Requests()
        self._planner = StepPlanner(config, self.requests, self.budgets)
        self._endings = Endings(self.requests, runner, release, vocabulary)
        self._predicted_seconds = 0.0
        self.collecting_seconds = 0.0
        self._has_run = False

    @property
    def predicted_seconds(self) -> float:
        """Seconds that the work of this moment should take in all; 0 between steps. Safe from any thread."""
        return self._predicted_seconds + self.decoder.predicted_seconds

    @property
    def num_decoding(self) -> int:
        """Number of requests that wait to be decoded or collected, or are being decoded."""
        return self.decoder.outstanding + len(self.requests.retry)

    @property
    def goes_on(self) -> bool:
        """Return whether more steps follow even if this one had no output, as after a turn within a step."""
        return bool(self._has_run or self.num_decoding or self.collecting_seconds)

    @property
    def seconds_to_wait(self) -> float | None:
        """Seconds until the next step, unless a message arrives first; `None` to wait for a message."""
        return 0.0 if self._has_run else self.collecting_seconds or None

    def step(self, arrived: Sequence[RequestState], aborted: Sequence[str]) -> list[StepOutput]:
        """Add requests, abort others, collect finished images, and run a denoising step if one is needed.

        While the engine waits for other requests instead, `collecting_seconds` says how much longer it may.
        Raise errors that no request caused, such as a failure of a stage: the engine is then broken.
        """
        outputs = [output for state in arrived for output in self._accept(state)]
        outputs += self._abort(aborted)
        outputs += self._collect()
        self._adapt(outputs)
        self._retry()
        chosen = [] if self._decodes_exclusively() else self._planner.choose()
        self.collecting_seconds = self._planner.seconds_to_collect() if chosen else 0.0
        self._has_run = bool(chosen) and not self.collecting_seconds and self._may_start(chosen[0])
        self.decoder.yield_to(chosen[0].options.priority if self._has_run else None)
        if self._has_run:
            self._planner.count_step(chosen)
            self._make_room(chosen)
            outputs += self._run(chosen)
        return outputs

    def fail_all(self, reason: str) -> list[StepOutput]:
        """Fail every request in progress with `EngineClosed`."""
        return [
            self._endings.fail(state, EngineClosed(f"request {state.request_id}: {reason}"))
            for state in self.requests
        ]

    def close(self) -> None:
        """Stop the threads, and keep the cost fit where the configuration says so."""
        self.decoder.close()
        self._stages.close()
        self._runner.close()
        if self._cost_fit_path is not None:
            self.cost_model.save(self._cost_fit_path)

    def _adapt(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            if output.result is not None:  # what was aborted or refused counts nowhere
                timings = output.result.timings
                self.adaptive.note_ended(timings.total_seconds, timings.device_seconds)
        self.adaptive.look((state.stopwatch.added for state in self.requests), self.budgets.tokens)

    def _accept(self, state: RequestState) -> list[StepOutput]:
        self.requests.add(state)
        if state.refusal is not None:
            return [self._endings.fail(state, state.refusal)]
        if state.is_denoised:  # elsewhere
            self._decode(state)
        return []

    def _abort(self, request_ids: Sequence[str]) -> list[StepOutput]:
        outputs = []
        for request_id in request_ids:
            state = self.requests.find(request_id)
            if state is not None:
                self.decoder.drop(request_id)
                outputs.append(self._endings.fail(state, RequestAborted(request_id, "aborted")))
        return outputs

    def _collect(self) -> list[StepOutput]:
        """Return what the decoder has made, but for requests that have ended meanwhile."""
        return [
            self._follow_decoded(decoded.state, decoded)
            for decoded in self.decoder.collect()
            if decoded.state.phase is not RequestPhase.ENDED
        ]

    def _follow_decoded(self, state: RequestState, decoded: Decoded) -> StepOutput:
        if isinstance(decoded.outcome, FrameChunk):
            return _frames_output(state, decoded.outcome)
        if not isinstance(decoded.outcome, Exception):
            return self._endings.finish(state, decoded.outcome)
        output = self._endings.fail_or_retry(state, decoded.outcome)
        if state.phase is not RequestPhase.ENDED:
            self.requests.move(state, RequestPhase.RETRY)
        return output

    def _retry(self) -> None:
        """Decode a request that ran out of memory once more, once no other is being decoded."""
        if self.requests.retry and not self.decoder.outstanding:
            self._decode(next(iter(self.requests.retry.values())))

    def _decode(self, state: RequestState) -> None:
        self.requests.move(state, RequestPhase.DECODING)
        self.decoder.put(state)

    def _decodes_exclusively(self) -> bool:
        """Return whether a request has the device to itself for its decoding, or waits to have it."""
        return bool(self.requests.retry) or any(state.exclusive for state in self.requests.decoding.values())

    def _may_start(self, first: RequestState) -> bool:
        """Return `False` for a request that needs the device to itself while others are decoded."""
        return not (first.needs_device and self.decoder.outstanding)

    def _make_room(self, chosen: Sequence[RequestState]) -> None:
        """Give the chosen requests their memory, of which waiting ones give back theirs where it is short."""
        for state in chosen:
            begin_step(state, self._runner.pipeline.device)
        for state in self._planner.to_swap_out(chosen):
            self._swap_out(state)

    def _swap_out(self, state: RequestState) -> None:
        self._prompts.drop(state)
        swap_out(state, self._runner.progress(state))
        self._runner.forget(state.request_id)
        self.stats.num_swapped_out += 1

    def _run(self, chosen: Sequence[RequestState]) -> list[StepOutput]:
        self._stages.set_busy(Stage.DENOISE, True)
        for state in chosen:
            state.stopwatch.start()
        self._predicted_seconds = self._denoising.predict(chosen)
        outputs = self._encode(chosen)
        ready = [state for state in chosen if state.conditioning is not None]
        if ready:
            outputs += self._denoise(ready)
        self._predicted_seconds = 0.0
        self._stages.set_busy(Stage.DENOISE, bool(self.requests.stepping))
        return outputs

    def _encode(self, chosen: Sequence[RequestState]) -> list[StepOutput]:
        unencoded = self._planner.to_encode(chosen)
        failures = self._prompts.encode(unencoded) if unencoded else {}
        return [
            self._endings.fail_or_retry(self.requests.stepping[request_id], error)
            for request_id, error in failures.items()
        ]

    def _denoise(self, states: Sequence[RequestState]) -> list[StepOutput]:
        def prepare_next() -> None:
            self._runner.prepare(self._planner.following(states))

        outcomes = self._denoising.run(states, meanwhile=prepare_next)
        advanced = [self._advance(state, outcome) for state, outcome in outcomes]
        return [output for output in advanced if output is not None]

    def _advance(self, state: RequestState, outcome: StepOutcome) -> StepOutput | None:
        """Count a step when its last turn is done; after the last step queue the request for decoding."""
        if isinstance(outcome, Exception):
            return self._endings.fail_or_retry(state, outcome)
        if isinstance(outcome, TurnResult):
            state.predicted += (outcome.prediction,)
            return None
        state.advance(outcome.latents, outcome.memory)
        self._count_as_tried(state)
        if state.is_denoised:
            state.stopwatch.denoised = time.perf_counter()
            if state.options.until_denoised:
                return self._endings.finish_denoised(state)
            self._decode(state)
        previews = tuple(Image.fromarray(levels.numpy()) for levels in outcome.previews)
        return state.output(latent_previews=previews)

    def _count_as_tried(self, state: RequestState) -> None:
        """Let requests of up to this one's size share steps, once it has done one."""
        if state.untried:
            for each in self.requests.stepping.values():
                each.untried &= each.workload.sequence_tokens > state.workload.sequence_tokens
            state.untried = False


def _frames_output(state: RequestState, chunk: FrameChunk) -> StepOutput:
    num_decoded = chunk.index * state.clip_frames + chunk.start + len(chunk.frames)
    return state.output(num_decoded, chunk=chunk if state.options.stream_frames else None)

"""Ranks in lockstep: rank 0 decides, and the others do the same.

Before each denoising step rank 0 broadcasts one command, which says which requests join, step and leave;
then all ranks step. No other rank decides anything (INV-5), and each has the whole latents of every
request after each step. Noise is drawn on every rank from the request's own seed, and conditioning comes
with the request, so only rank 0 has text encoders. Where ranks share weights they share the text encoder's
too, and rank 0 commands them to encode as well.

There is no barrier. Ranks agree twice in a step, by an all-reduced flag: before the collectives of the
forward pass, since a rank that fails earlier would leave the others waiting in them, and at the end, so
that a step that failed on one rank counts on none. A batch that failed is halved on all ranks alike.

Images are decoded by all ranks, each some requests, or of large images each a slab. That has groups of its
own, as it runs beside the next steps. Clips are decoded by rank 0 alone, whose caller gets the chunks as they
come; the other ranks forget them with the requests.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from diffuserve.domain.models.parts import Parts
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.sendable import Sendable
from diffuserve.engine.model_runner import AdaptedPrompt, ModelRunner
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.requests.swapping import go_on_from, progress_of
from diffuserve.engine.runner import StepOutcome, StepResult, TurnResult
from diffuserve.engine.stages import Stage, make_stage_executor
from diffuserve.engine_process.ranks.rank_adapters import RankAdapters, no_adapters
from diffuserve.engine_process.ranks.slab_decoding import EVERY_RANK, decode_in_slabs
from diffuserve.models.frames import Media
from diffuserve.models.layers.adapted.adapters import of_prompts
from diffuserve.models.machine.isolation import is_out_of_memory, isolate
from diffuserve.models.pipelines.base import Conditioning, PackedPipeline, map_tensors
from diffuserve.parallel.heartbeats import BROKEN_GROUP
from diffuserve.parallel.ranks import OtherRankFailed, Ranks

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Value = TypeVar("Value")
Outcome = list[Media] | Exception

_MAX_FORGOTTEN = 1_000


@dataclass(frozen=True)
class JoiningRequest(Sendable):
    """A request that takes its first step here; its conditioning is on the CPU.

    One that goes on from a checkpoint has `progress`.
    """

    request_id: str
    params: GenerationParams
    conditioning: Conditioning
    progress: RequestProgress | None = None


@dataclass(frozen=True)
class StepCommand(Sendable):
    """A step of all ranks: requests that `leave` are forgotten first, then those that `join` are added.

    `leaves` and `steps` hold request ids; `steps` is the batch in its order. For requests that take their
    step in several turns, `turns` has the first image of the turn and the first image after it. `expects` are
    the adapters of requests that rank 0 has room for, and loads.
    """

    joins: tuple[JoiningRequest, ...]
    steps: tuple[str, ...]
    leaves: tuple[str, ...]
    turns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    expects: Mapping[str, tuple[AdapterUse, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class DecodeCommand(Sendable):
    """The rank that decodes each request, by request id, or `EVERY_RANK` for all of them together."""

    ranks: Mapping[str, int]


@dataclass(frozen=True)
class EncodeCommand(Sendable):
    """Requests that all ranks encode together, as they share the text encoder's weights.

    `leaves` and `expects` are as in `StepCommand`.
    """

    requests: Mapping[str, GenerationParams]
    leaves: tuple[str, ...]
    expects: Mapping[str, tuple[AdapterUse, ...]]


def rank_parts(parts: Parts, ranks: Ranks) -> Parts:
    """Return the parts that this rank loads, of those that the worker needs.

    Only rank 0 encodes, unless all ranks share the text encoder's weights.
    """
    return replace(parts, encoding=parts.encoding and (ranks.is_lead or ranks.plan.is_sharded))


class LeadRunner(ModelRunner):
    """Rank 0's runner: commands each step, does its own part, and collects the others' images."""

    def __init__(self, pipeline: PackedPipeline, ranks: Ranks) -> None:
        super().__init__(pipeline)
        self._ranks = ranks
        self._known: set[str] = set()
        self._expected: dict[str, tuple[AdapterUse, ...]] = {}  # as any thread tells it
        self._told: set[str] = set()  # what ranks have heard of, beside those known
        self._leaving: list[str] = []
        self._num_decoded = 0
        self.num_ranks = ranks.size

    def encode(self, states: Sequence[RequestState]) -> list[Conditioning | Exception]:
        if not self._ranks.plan.is_sharded:
            return super().encode(states)
        prompts = [AdaptedPrompt.of(state) for state in states]
        self._told |= {state.request_id for state in states}
        requests = {state.request_id: state.params for state in states}
        command = EncodeCommand(requests, self._take_leaving(), self._take_expected())
        self._ranks.commands.broadcast(command)
        return isolate(prompts, agreed(self._ranks, self._encode))

    def step(self, states: Sequence[RequestState]) -> list[StepOutcome]:
        self._announce(states)
        self._ranks.commands.broadcast(self._command(states))
        return isolate(states, agreed(self._ranks, self._step))

    def decode(self, states: Sequence[RequestState]) -> list[Outcome]:
        """Spread the requests over the ranks, and return their images; on the decoder's thread.

        An exclusive request is decoded here: the other ranks may have given up its latents already. They
        never had those of a request that came with its latents, as it has done no step.
        """
        if any(state.exclusive or state.request_id not in self._known for state in states):
            return super().decode(states)
        self._announce(states)
        if self.packed.decodes_in_slabs(states[0].params):
            self._ranks.images.broadcast(DecodeCommand({state.request_id: EVERY_RANK for state in states}))
            return [decode_in_slabs(self.packed, self._ranks, state) for state in states]
        rank_of = {state.request_id: self._next_decoder() for state in states}
        self._ranks.images.broadcast(DecodeCommand(rank_of))
        own = [state for state in states if rank_of[state.request_id] == 0]
        decoded = isolate(own, self._decode_finite)
        outcomes = dict(zip((state.request_id for state in own), decoded, strict=True))
        for rank in sorted(set(rank_of.values()) - {0}):
            outcomes |= self._ranks.images.receive(rank)
        return [outcomes[state.request_id] for state in states]

    def expect(self, request_id: str, adapters: Sequence[AdapterUse]) -> None:
        self._expected[request_id] = tuple(adapters)

    def forget(self, request_id: str) -> None:
        self._expected.pop(request_id, None)
        if request_id in self._known or request_id in self._told:
            self._known.discard(request_id)
            self._told.discard(request_id)
            self._leaving.append(request_id)

    def close(self) -> None:
        """End the other ranks' loops."""
        self._ranks.commands.broadcast(None)
        self._ranks.images.broadcast(None)

    def _command(self, states: Sequence[RequestState]) -> StepCommand:
        new = [state for state in states if state.request_id not in self._known]
        self._known |= {state.request_id for state in new}
        return StepCommand(
            joins=tuple(_joining(state) for state in new),
            steps=tuple(state.request_id for state in states),
            leaves=self._take_leaving(),
            expects=self._take_expected(),
            turns={state.request_id: (state.turn.start, state.turn.stop) for state in states if state.turn},
        )

    def _take_leaving(self) -> tuple[str, ...]:
        leaving, self._leaving = tuple(self._leaving), []
        return leaving

    def _take_expected(self) -> dict[str, tuple[AdapterUse, ...]]:
        expected = {request_id: self._expected.pop(request_id) for request_id in list(self._expected)}
        self._told |= set(expected)
        return expected

    def _next_decoder(self) -> int:
        self._num_decoded += 1
        return self._num_decoded % self._ranks.size


class FollowerRank:
    """A rank other than 0: follows rank 0's commands, in two stages as rank 0 does."""

    def __init__(self, pipeline: PackedPipeline, ranks: Ranks, adapters: RankAdapters | None = None) -> None:
        """`adapters` load this rank's part of those that requests ask for."""
        self._pipeline, self._ranks = pipeline, ranks
        self._adapters = adapters or no_adapters()
        self._runner = ModelRunner(pipeline)
        self._stages = make_stage_executor(pipeline.device, num_threads=1, deterministic=False)
        self._states: dict[str, RequestState] = {}
        self._changed = threading.Condition()  # guards the two below, which both threads use
        self._denoised: dict[str, RequestState] = {}
        self._forgotten: deque[str] = deque(maxlen=_MAX_FORGOTTEN)

    def run(self) -> None:
        """Follow commands until rank 0 closes."""
        decoding = threading.Thread(target=self._decode_forever, name="decoder", daemon=True)
        decoding.start()
        while (command := self._ranks.commands.broadcast()) is not None:
            if isinstance(command, EncodeCommand):
                self.encode(command)
            else:
                self.step(command)
        decoding.join()
        self._stages.close()

    def encode(self, command: EncodeCommand) -> None:
        """Encode with all ranks; rank 0 keeps the results, which come back with the requests that join."""
        self._prepare(command)
        encode = agreed(self._ranks, self._encode)
        self._stages.run(Stage.DENOISE, [partial(isolate, list(command.requests.items()), encode)])

    def _encode(self, requests: Sequence[tuple[str, GenerationParams]]) -> list[Conditioning]:
        uses = [self._adapters.of(request_id, params.adapters or ()) for request_id, params in requests]
        pairs = zip(requests, uses, strict=True)
        return self._runner._encode([AdaptedPrompt(params, of_prompts(own)) for (_, params), own in pairs])

    def step(self, command: StepCommand) -> None:
        """Take one step with all ranks."""
        self._prepare(command)
        [outcomes] = self._stages.run(Stage.DENOISE, [partial(self._step, command)]).results
        for request_id, outcome in zip(command.steps, outcomes, strict=True):
            self._advance(self._states[request_id], outcome)

    def _step(self, command: StepCommand) -> list[StepOutcome]:
        for joining in command.joins:
            self._states[joining.request_id] = self._state(joining)
            self._remember(joining.request_id)
        states = [self._states[request_id] for request_id in command.steps]
        for state in states:
            turn = command.turns.get(state.request_id)
            state.turn = None if turn is None else range(*turn)
        return isolate(states, agreed(self._ranks, self._step_adapted))

    def _step_adapted(self, states: Sequence[RequestState]) -> list[StepResult | TurnResult]:
        for state in states:
            state.adapters = self._adapters.of(state.request_id, state.params.adapters or ())
        return self._runner._step(states)

    def _prepare(self, command: StepCommand | EncodeCommand) -> None:
        self._forget(command.leaves)
        for request_id, wanted in command.expects.items():
            self._adapters.expect(request_id, wanted)

    def _advance(self, state: RequestState, outcome: StepOutcome) -> None:
        if isinstance(outcome, Exception):
            return
        if isinstance(outcome, TurnResult):
            state.predicted += (outcome.prediction,)
            return
        state.advance(outcome.latents, outcome.memory)
        if state.is_denoised:
            with self._changed:
                self._denoised[state.request_id] = self._states.pop(state.request_id)
                self._changed.notify()

    def _forget(self, request_ids: Iterable[str]) -> None:
        """Drop requests, and remember their ids: a command to decode an aborted one may still arrive."""
        with self._changed:
            for request_id in request_ids:
                self._adapters.release(request_id)
                if self._states.pop(request_id, None) or self._denoised.pop(request_id, None):
                    self._forgotten.append(request_id)
            self._changed.notify()

    def _remember(self, request_id: str) -> None:
        """Undo the drop of a request that was swapped out and resumes."""
        with self._changed:
            if request_id in self._forgotten:
                self._forgotten.remove(request_id)

    def _state(self, joining: JoiningRequest) -> RequestState:
        params = joining.params
        state = RequestState(
            request_id=joining.request_id,
            params=params,
            workload=self._pipeline.spec.workload(params),
            step_bytes=0,
            schedule=self._pipeline.schedule(params),
            arrival=0,
            conditioning=map_tensors(joining.conditioning, lambda tensor: tensor.to(self._pipeline.device)),
        )
        if joining.progress is not None:
            go_on_from(state, joining.progress, self._pipeline.device)
        return state

    def _decode_forever(self) -> None:
        try:
            while (command := self._ranks.images.broadcast()) is not None:
                self._decode(command)
        except BaseException:
            log.exception("rank %d cannot decode any more; its process ends", self._ranks.index)
            os._exit(BROKEN_GROUP)  # otherwise rank 0 would wait for its images

    def _decode(self, command: DecodeCommand) -> None:
        states = {request_id: self._take_denoised(request_id) for request_id in command.ranks}
        for request_id in _decoded_by(command, EVERY_RANK):
            decode = partial(decode_in_slabs, self._pipeline, self._ranks, states[request_id])
            self._stages.run(Stage.DECODE, [decode])
        own = _decoded_by(command, self._ranks.index)
        if not own:
            return
        images: dict[str, Outcome] = {request_id: RuntimeError("aborted") for request_id in own}
        left = [state for request_id in own if (state := states[request_id]) is not None]
        [outcomes] = self._stages.run(Stage.DECODE, [partial(self._runner.decode, left)]).results
        for state, outcome in zip(left, outcomes, strict=True):
            images[state.request_id] = _portable(outcome)
        self._ranks.images.send(images, 0)

    def _take_denoised(self, request_id: str) -> RequestState | None:
        """Wait until the request's last step is done here, and return it, or `None` if it was aborted."""
        with self._changed:
            self._changed.wait_for(lambda: request_id in self._denoised or request_id in self._forgotten)
            return self._denoised.pop(request_id, None)


def _decoded_by(command: DecodeCommand, rank: int) -> list[str]:
    return [request_id for request_id, number in command.ranks.items() if number == rank]


def agreed(
    ranks: Ranks, run: Callable[[Sequence[Item]], list[Value]]
) -> Callable[[Sequence[Item]], list[Value]]:
    """Wrap `run` so that it raises on every rank if it failed on any."""

    def attempt(items: Sequence[Item]) -> list[Value]:
        try:
            values = run(items)
        except OtherRankFailed:  # the ranks have agreed on it already, before the collectives
            raise
        except Exception as error:
            ranks.agree(error)
            raise
        ranks.agree()
        return values

    return attempt


def _joining(state: RequestState) -> JoiningRequest:
    """Return what the other ranks need of a request: of its images, which are encoded here, the sizes."""
    assert state.conditioning is not None
    params = state.params.with_images(lambda _field, image: _without_pixels(image))
    conditioning = map_tensors(state.conditioning, Tensor.cpu)
    return JoiningRequest(state.request_id, params, conditioning, progress_of(state))


def _without_pixels(image: ImageInput) -> InputImage:
    assert isinstance(image, InputImage)
    return replace(image, pixels=None)


def _portable(outcome: Outcome) -> Outcome:
    """Return the outcome with an exception of a class that messages may have."""
    if not isinstance(outcome, Exception):
        return outcome
    if is_out_of_memory(outcome):
        return MemoryError(str(outcome))
    kind = FloatingPointError if isinstance(outcome, FloatingPointError) else RuntimeError
    return kind(f"{type(outcome).__name__}: {outcome}")

"""Ranks in lockstep: rank 0 decides, the others do the same.

Before each denoising step rank 0 tells all ranks which requests join, step and leave, in one message;
then all of them step. Nothing else is decided anywhere but there (INV-5), and every rank has the whole
latents of every request after each step. Noise is drawn on every rank from the request's own seed, and
conditioning comes with the request, so only rank 0 needs text encoders.

There is no barrier. Ranks agree twice in a step, by an all-reduced flag: before the collectives of the
forward pass, since a rank that fails earlier would leave the others waiting in them, and at the end, so
that what one of them could not do counts nowhere. A batch that failed is halved on all ranks alike.

Decoding is spread by request, over a group of its own, since it runs beside the next steps.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from diffuserve.domain.params import GenerationParams
from diffuserve.engine.model_runner import ModelRunner, StepResult, is_out_of_memory, isolate
from diffuserve.engine.request_state import RequestState
from diffuserve.models.base import Conditioning, Frames, Pipeline
from diffuserve.parallel.ranks import OtherRankFailed, Ranks

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Value = TypeVar("Value")
Outcome = list[Frames] | Exception

_BROKEN = 70
_MAX_GONE = 1_000


@dataclass(frozen=True)
class Join:
    """A request that takes its first step; its conditioning travels on the CPU."""

    request_id: str
    params: GenerationParams
    conditioning: Conditioning


@dataclass(frozen=True)
class StepOrder:
    """What all ranks do now; who is in `leaves` is forgotten first."""

    joins: tuple[Join, ...]
    steps: tuple[str, ...]
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class DecodeOrder:
    """Which rank decodes which request."""

    ranks: dict[str, int]


class LeadRunner(ModelRunner):
    """Rank 0's: says what is to be done, does its part, and collects the others' images."""

    def __init__(self, pipeline: Pipeline, ranks: Ranks) -> None:
        super().__init__(pipeline)
        self._ranks = ranks
        self._known: set[str] = set()
        self._leaving: list[str] = []
        self._num_decoded = 0
        self.num_decoders = ranks.size

    def step(self, states: Sequence[RequestState]) -> list[StepResult | Exception]:
        self._announce(states)
        self._ranks.orders.broadcast(self._order(states))
        return isolate(states, agreed(self._ranks, self._step))

    def decode(self, states: Sequence[RequestState]) -> list[Outcome]:
        """On the decoder's thread."""
        self._announce(states)
        dealt = {state.request_id: self._next_decoder() for state in states}
        self._ranks.images.broadcast(DecodeOrder(dealt))
        mine = [state for state in states if dealt[state.request_id] == 0]
        drawn = isolate(mine, self._decode_finite)
        outcomes = dict(zip((one.request_id for one in mine), drawn, strict=True))
        for rank in sorted(set(dealt.values()) - {0}):
            outcomes |= self._ranks.images.receive(rank)
        return [outcomes[state.request_id] for state in states]

    def forget(self, request_id: str) -> None:
        if request_id in self._known:
            self._known.remove(request_id)
            self._leaving.append(request_id)

    def close(self) -> None:
        """The others end."""
        self._ranks.orders.broadcast(None)
        self._ranks.images.broadcast(None)

    def _order(self, states: Sequence[RequestState]) -> StepOrder:
        new = [state for state in states if state.request_id not in self._known]
        self._known |= {state.request_id for state in new}
        leaves, self._leaving = tuple(self._leaving), []
        return StepOrder(
            tuple(_join(state) for state in new), tuple(state.request_id for state in states), leaves
        )

    def _next_decoder(self) -> int:
        self._num_decoded += 1
        return self._num_decoded % self._ranks.size


class Follower:
    """Any other rank's: does what it is told, on two threads as rank 0 does."""

    def __init__(self, pipeline: Pipeline, ranks: Ranks) -> None:
        self._pipeline, self._ranks = pipeline, ranks
        self._runner = ModelRunner(pipeline)
        self._states: dict[str, RequestState] = {}
        self._changed = threading.Condition()  # guards what is denoised and not yet decoded:
        self._denoised: dict[str, RequestState] = {}
        self._gone: deque[str] = deque(maxlen=_MAX_GONE)

    def run(self) -> None:
        """Until rank 0 closes."""
        decoding = threading.Thread(target=self._decode_for_ever, name="decoder", daemon=True)
        decoding.start()
        while (order := self._ranks.orders.broadcast()) is not None:
            self.obey(order)
        decoding.join()

    def obey(self, order: StepOrder) -> None:
        self._forget(order.leaves)
        for join in order.joins:
            self._states[join.request_id] = self._state(join)
        states = [self._states[request_id] for request_id in order.steps]
        outcomes = isolate(states, agreed(self._ranks, self._runner._step))
        for state, outcome in zip(states, outcomes, strict=True):
            if isinstance(outcome, StepResult):
                self._move(state, outcome)

    def _move(self, state: RequestState, moved: StepResult) -> None:
        state.latents = moved.latents
        state.step += 1
        if state.is_denoised:
            with self._changed:
                self._denoised[state.request_id] = self._states.pop(state.request_id)
                self._changed.notify()

    def _forget(self, request_ids: Iterable[str]) -> None:
        """Who was aborted may yet be in an order to decode that is on its way."""
        with self._changed:
            for request_id in request_ids:
                if self._states.pop(request_id, None) or self._denoised.pop(request_id, None):
                    self._gone.append(request_id)
            self._changed.notify()

    def _state(self, join: Join) -> RequestState:
        params = join.params
        return RequestState(
            request_id=join.request_id,
            params=params,
            workload=self._pipeline.spec.workload(params),
            step_bytes=0,
            schedule=self._pipeline.schedule(params),
            priority=0,
            arrival=0,
            wants_preview=False,
            conditioning=_on(join.conditioning, self._pipeline.device),
        )

    def _decode_for_ever(self) -> None:
        try:
            while (order := self._ranks.images.broadcast()) is not None:
                self._decode(order)
        except BaseException:
            log.exception("rank %d cannot decode any more", self._ranks.index)
            os._exit(_BROKEN)  # or rank 0 would wait for its images

    def _decode(self, order: DecodeOrder) -> None:
        states = {request_id: self._take(request_id) for request_id in order.ranks}
        mine = [one for one, rank in order.ranks.items() if rank == self._ranks.index]
        if not mine:
            return
        images: dict[str, Outcome] = {one: RuntimeError("aborted") for one in mine}
        left = [state for one in mine if (state := states[one]) is not None]
        for state, outcome in zip(left, self._runner.decode(left), strict=True):
            images[state.request_id] = _portable(outcome)
        self._ranks.images.send(images, 0)

    def _take(self, request_id: str) -> RequestState | None:
        """The last step may still be under way here; `None` for what was aborted."""
        with self._changed:
            self._changed.wait_for(lambda: request_id in self._denoised or request_id in self._gone)
            return self._denoised.pop(request_id, None)


def agreed(
    ranks: Ranks, run: Callable[[Sequence[Item]], list[Value]]
) -> Callable[[Sequence[Item]], list[Value]]:
    """`run`, which counts only where every rank did well."""

    def attempt(items: Sequence[Item]) -> list[Value]:
        try:
            values = run(items)
        except OtherRankFailed:  # heard before the collectives
            raise
        except Exception as error:
            ranks.agree(error)
            raise
        ranks.agree()
        return values

    return attempt


def _join(state: RequestState) -> Join:
    assert state.conditioning is not None
    return Join(state.request_id, state.params, _on(state.conditioning, torch.device("cpu")))


def _on(conditioning: Conditioning, device: torch.device) -> Conditioning:
    tensors: dict[str, Any] = {
        field.name: value.to(device)
        for field in fields(conditioning)
        if isinstance(value := getattr(conditioning, field.name), Tensor)
    }
    return replace(conditioning, **tensors)


def _portable(outcome: Outcome) -> Outcome:
    """An exception of a kind that every process can read."""
    if not isinstance(outcome, Exception):
        return outcome
    if is_out_of_memory(outcome):
        return MemoryError(str(outcome))
    kind = FloatingPointError if isinstance(outcome, FloatingPointError) else RuntimeError
    return kind(f"{type(outcome).__name__}: {outcome}")

"""Runs models whose requests run by themselves: what is kept of each is here, by its id."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.requests.swapping import progress_of
from diffuserve.engine.runner import Runner, StepOutcome, StepResult, TurnResult
from diffuserve.models.frames import Media
from diffuserve.models.pipelines.base import (
    Conditioning,
    Pipeline,
    RunningPipeline,
    RunningRequest,
    RunningStep,
    packed,
)


class RunRunner(Runner):
    """Leads the requests of a `RunningPipeline`; their conditioning and latents stay with them."""

    def __init__(self, pipeline: RunningPipeline[Any]) -> None:
        super().__init__(pipeline)
        self._running = pipeline
        self._requests: dict[str, RunningRequest] = {}
        self._decoding: set[str] = set()
        self._lock = threading.Lock()  # guards both: requests are forgotten while others are decoded

    @property
    def held_bytes(self) -> int:
        if self.pipeline.spec.resumes:
            return 0  # counted with each state, since swapping it out frees them
        with self._lock:
            requests = list(self._requests.values())
        return sum(request.held_bytes for request in requests)

    def encode(self, states: Sequence[RequestState]) -> list[Conditioning | Exception]:
        for state in states:
            self.forget(state.request_id)  # an earlier attempt, which ran out of memory
            self._requests[state.request_id] = self._running.begin(state.params, state.runs, state.adapters)
        requests = [self._requests[state.request_id] for state in states]
        failures = self._running.encode(requests)
        for state, failure in zip(states, failures, strict=True):
            if failure is None:
                state.runs = ()
        self._count_held(states)
        return [failure or Conditioning(()) for failure in failures]

    def step(self, states: Sequence[RequestState]) -> list[StepOutcome]:
        self._announce(states)
        steps = [
            RunningStep(self._requests[state.request_id], state.step, state.num_steps, _images(state))
            for state in states
        ]
        before = [each.request.num_calls for each in steps]
        failures = self._running.step(steps)
        num_passes = [each.request.num_calls - count for each, count in zip(steps, before, strict=True)]
        self._count_held(states)
        return [
            failure or self._advanced(state, count)
            for state, failure, count in zip(states, failures, num_passes, strict=True)
        ]

    def decode(self, states: Sequence[RequestState]) -> list[list[Media] | Exception]:
        self._announce(states)
        with self._lock:
            present = [state for state in states if state.request_id in self._requests]
            requests = {state.request_id: self._requests[state.request_id] for state in present}
            self._decoding |= requests.keys()
        images = [_images(state) for state in present]
        decoded = self._running.decode(list(requests.values()), images)
        for state in present:
            state.conditioning = Conditioning(requests[state.request_id].warnings)
        self._end_decoding(requests)
        outcomes = dict(zip(requests, decoded, strict=True))
        return [outcomes.get(state.request_id, _has_ended(state)) for state in states]

    def _advanced(self, state: RequestState, num_passes: int) -> StepOutcome:
        """Return that the images in a request's turn have done their step."""
        images = torch.empty(len(_images(state)), 0)
        if sum(map(len, state.predicted)) + len(images) < state.params.num_images:
            return TurnResult(images)
        wants = state.options.wants_preview(state.step + 1)
        drawn = self._running.previews(self._requests[state.request_id]) if wants else ()
        previews = tuple(levels.to("cpu", non_blocking=True) for levels in drawn)
        return StepResult(None, (), previews, num_passes=num_passes)

    def progress(self, state: RequestState) -> RequestProgress | None:
        """Return the progress of a request's runs; one that is denoised has a last step without work."""
        if not self.pipeline.spec.resumes:
            return None
        request = self._requests.get(state.request_id)
        if request is None or state.conditioning is None:
            return progress_of(state)
        step = min(state.step, state.num_steps - 1)
        return RequestProgress(step, latents=None, predicted=state.predicted, runs=request.progress())

    def _count_held(self, states: Sequence[RequestState]) -> None:
        """Note what swapping requests out would free; those that cannot begin anew are never swapped out."""
        for state in states:
            request = self._requests[state.request_id]
            state.run_bytes = request.held_bytes if self.pipeline.spec.resumes else 0

    def forget(self, request_id: str) -> None:
        with self._lock:
            request = self._requests.pop(request_id, None)
            is_decoding = request_id in self._decoding
        if request is not None and not is_decoding:
            request.close()

    def close(self) -> None:
        for request_id in list(self._requests):
            self.forget(request_id)

    def _end_decoding(self, requests: Mapping[str, RunningRequest]) -> None:
        """Close the requests that were forgotten while they were decoded."""
        with self._lock:
            self._decoding -= requests.keys()
            forgotten = [request for key, request in requests.items() if key not in self._requests]
        for request in forgotten:
            request.close()


def runner_of(pipeline: Pipeline) -> Runner:
    """Return the runner of a loaded model, in this process alone."""
    if isinstance(pipeline, RunningPipeline):
        return RunRunner(pipeline)
    return ModelRunner(packed(pipeline))


def _images(state: RequestState) -> range:
    return range(state.params.num_images) if state.turn is None else state.turn


def _has_ended(state: RequestState) -> Exception:
    return RuntimeError(f"request {state.request_id} has ended")

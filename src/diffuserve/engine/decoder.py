"""Decoding on a thread of its own, so that it never holds up the next denoising step."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from diffuserve.domain.params import GenerationParams
from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.lanes import Lane, Lanes
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.request_state import RequestState
from diffuserve.models.base import Frames


@dataclass(frozen=True)
class Decoded:
    """A request that left the decoder, with its images or what it failed with."""

    state: RequestState
    outcome: list[Frames] | Exception


@dataclass(frozen=True)
class _Job:
    state: RequestState
    mark: object


class Decoder:
    """A queue, a thread, and a list of what is done.

    `on_decoded` is called from the thread whenever something is ready to be collected.
    """

    def __init__(
        self, runner: ModelRunner, lanes: Lanes, cost_model: CostModel, on_decoded: Callable[[], None]
    ) -> None:
        self._runner, self._lanes, self._cost_model = runner, lanes, cost_model
        self._on_decoded = on_decoded
        self._waiting: deque[_Job] = deque()
        self._done: deque[Decoded] = deque()
        self._outstanding = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="diffuserve-decoder", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """Requests put in and not yet collected."""
        return self._outstanding

    def put(self, state: RequestState) -> None:
        with self._changed:
            self._lanes.set_busy(Lane.DECODE, True)
            self._waiting.append(_Job(state, self._lanes.mark()))
            self._outstanding += 1
            self._changed.notify()

    def collect(self) -> list[Decoded]:
        with self._changed:
            done = list(self._done)
            self._done.clear()
            self._outstanding -= len(done)
            return done

    def drop(self, request_id: str) -> bool:
        """Take a request out again; `False` if its decoding has begun, and it will be collected."""
        with self._changed:
            for job in self._waiting:
                if job.state.request_id == request_id:
                    self._waiting.remove(job)
                    self._outstanding -= 1
                    return True
            return False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while groups := self._next_groups():
            decoded = self._decode(groups)
            with self._changed:
                self._done.extend(decoded)
                self._lanes.set_busy(Lane.DECODE, bool(self._waiting))
            del groups, decoded  # or the last images would live until the next request
            self._on_decoded()

    def _next_groups(self) -> list[list[_Job]]:
        """One group for each seat of the lane; an empty list once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            groups = [self._take_group()]
            while self._waiting and len(groups) < self._lanes.num_seats(Lane.DECODE):
                groups.append(self._take_group())
            return groups

    def _take_group(self) -> list[_Job]:
        """The longest waiting request, and others of its size that may go with it."""
        group: list[_Job] = []
        pixels = 0
        for job in self._waiting:
            if group and _size(job.state.params) != _size(group[0].state.params):
                continue
            pixels += job.state.load.num_pixels
            if group and pixels > self._runner.pipeline.max_decode_pixels * self._runner.num_decoders:
                break
            group.append(job)
        for job in group:
            self._waiting.remove(job)
        return group

    def _decode(self, groups: list[list[_Job]]) -> list[Decoded]:
        tasks = [partial(self._decode_group, group) for group in groups]
        jobs = [job for group in groups for job in group]
        expected = self._cost_model.expected_decode_seconds([job.state.load for job in jobs])
        run = self._lanes.run(Lane.DECODE, tasks, expected, after=jobs[-1].mark)
        if run.share == 1.0 and len(groups) == 1:
            self._cost_model.observe_decode([job.state.load for job in jobs], run.seconds)
        total = sum(job.state.load.num_pixels for job in jobs)
        for job in jobs:
            job.state.watch.device_seconds += run.device_seconds * job.state.load.num_pixels / total
        return [decoded for group in run.results for decoded in group]

    def _decode_group(self, group: list[_Job]) -> list[Decoded]:
        states = [job.state for job in group]
        outcomes = self._runner.decode(states)
        for state in states:
            state.latents = None
        return [Decoded(state, outcome) for state, outcome in zip(states, outcomes, strict=True)]


def _size(params: GenerationParams) -> tuple[int | None, int | None, int]:
    return (params.width, params.height, params.num_frames)

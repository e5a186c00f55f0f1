"""Decoding on a thread of its own, so that it never delays the next denoising step."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from diffuserve.domain.params import GenerationParams
from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.model_runner import ModelRunner, fails_for_lack_of_room
from diffuserve.engine.request_state import RequestState
from diffuserve.engine.stages import Stage, StageExecutor
from diffuserve.models.frames import Frames


@dataclass(frozen=True)
class Decoded:
    """A request that left the decoder, with its images or the exception that it failed with."""

    state: RequestState
    outcome: list[Frames] | Exception


@dataclass(frozen=True)
class _QueuedRequest:
    """A request that waits; `mark` identifies the device work that makes its latents."""

    state: RequestState
    mark: object


class Decoder:
    """A queue, a thread, and a list of decoded requests.

    `on_decoded` is called from the thread whenever `collect` has something to return or to raise. A
    request's own failure is its outcome; any other error ends the thread, and `collect` raises it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        stages: StageExecutor,
        cost_model: CostModel,
        on_decoded: Callable[[], None],
    ) -> None:
        self._runner, self._stages, self._cost_model = runner, stages, cost_model
        self._on_decoded = on_decoded
        self._waiting: deque[_QueuedRequest] = deque()
        self._done: deque[Decoded] = deque()
        self._outstanding = 0
        self._fault: BaseException | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="diffuserve-decoder", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """Number of requests put in and not yet collected."""
        return self._outstanding

    def put(self, state: RequestState) -> None:
        with self._changed:
            self._stages.set_busy(Stage.DECODE, True)
            self._waiting.append(_QueuedRequest(state, self._stages.mark()))
            self._outstanding += 1
            self._changed.notify()

    def collect(self) -> list[Decoded]:
        """Return the requests that were decoded since the last call; never block.

        Raise the error that ended the thread, if one did: what was put in will never be decoded.
        """
        with self._changed:
            if self._fault is not None:
                raise self._fault
            done = list(self._done)
            self._done.clear()
            self._outstanding -= len(done)
            return done

    def drop(self, request_id: str) -> bool:
        """Remove a request that waits; `False` if its decoding has begun, and it will be collected."""
        with self._changed:
            for request in self._waiting:
                if request.state.request_id == request_id:
                    self._waiting.remove(request)
                    self._outstanding -= 1
                    return True
            return False

    def close(self) -> None:
        """Drop the requests that wait, and stop the thread after those that it decodes."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._decode_until_closed()
        except BaseException as error:  # or whoever waits for the images would wait forever
            with self._changed:
                self._fault = error
            self._on_decoded()

    def _decode_until_closed(self) -> None:
        while groups := self._next_groups():
            decoded = self._decode(groups)
            with self._changed:
                self._done.extend(decoded)
                self._stages.set_busy(Stage.DECODE, bool(self._waiting))
            del groups, decoded  # or the last images would live until the next request
            self._on_decoded()

    def _next_groups(self) -> list[list[_QueuedRequest]]:
        """Wait for work, and return a group for each core slot of the stage; `[]` once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            groups = [self._take_group()]
            while self._waiting and len(groups) < self._stages.num_core_slots(Stage.DECODE):
                groups.append(self._take_group())
            return groups

    def _take_group(self) -> list[_QueuedRequest]:
        """Remove and return the request that waited longest, and others of its size that fit with it."""
        group: list[_QueuedRequest] = []
        pixels = 0
        for request in self._waiting:
            if group and _size(request.state.params) != _size(group[0].state.params):
                continue
            pixels += request.state.workload.num_pixels
            if group and pixels > self._runner.pipeline.max_decode_pixels * self._runner.num_decoders:
                break
            group.append(request)
        for request in group:
            self._waiting.remove(request)
        return group

    def _decode(self, groups: list[list[_QueuedRequest]]) -> list[Decoded]:
        tasks = [partial(self._decode_group, group) for group in groups]
        requests = [request for group in groups for request in group]
        workloads = [request.state.workload for request in requests]
        expected = self._cost_model.expected_decode_seconds(workloads)
        run = self._stages.run(Stage.DECODE, tasks, expected, after=requests[-1].mark)
        decoded = [each for group in run.results for each in group]
        has_failed = any(isinstance(each.outcome, Exception) for each in decoded)
        if run.share == 1.0 and len(groups) == 1 and not has_failed:
            self._cost_model.observe_decode(workloads, run.seconds)
        _charge(requests, run.device_seconds)
        return decoded

    def _decode_group(self, group: list[_QueuedRequest]) -> list[Decoded]:
        states = [request.state for request in group]
        outcomes = self._runner.decode(states)
        for state, outcome in zip(states, outcomes, strict=True):
            if not fails_for_lack_of_room(state, outcome):
                state.latents = None
        return [Decoded(state, outcome) for state, outcome in zip(states, outcomes, strict=True)]


def _charge(requests: list[_QueuedRequest], device_seconds: float) -> None:
    """Split the time of a decode among its requests in proportion to their pixels."""
    total = sum(request.state.workload.num_pixels for request in requests)
    for request in requests:
        share = request.state.workload.num_pixels / total
        request.state.stopwatch.device_seconds += device_seconds * share


def _size(params: GenerationParams) -> tuple[int | None, int | None, int | None]:
    return (params.width, params.height, params.num_frames)

"""Decoding on a thread of its own, so that it never delays the next denoising step."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from diffuserve.domain.models.cost import Workload
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.decoding.decode_queue import Decoded, DecodeLimits, DecodeQueue, Group, QueuedDecode
from diffuserve.engine.model_runner import fails_for_lack_of_room
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.requests.admission import decode_bytes
from diffuserve.engine.requests.clip_decoding import ClipDecoding
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.engine.runner import Runner
from diffuserve.engine.stages import Stage, StageExecutor
from diffuserve.models.frames import Media


class Decoder:
    """A thread that decodes what its queue chooses, and a list of what was decoded. Safe from any thread.

    `on_decoded` is called from the decoder's thread whenever `collect` has something to return or to raise.
    The failure of one request is that request's outcome; any other error ends the thread, and `collect`
    raises it.
    """

    def __init__(
        self,
        runner: Runner,
        stages: StageExecutor,
        cost_model: CostModel,
        memory_budget: int,
        on_decoded: Callable[[], None],
    ) -> None:
        self._runner, self._stages, self._cost_model = runner, stages, cost_model
        self._on_decoded = on_decoded
        self._changed = threading.Condition()  # guards all that follows
        call_pixels = runner.pipeline.max_decode_pixels
        self._queue = DecodeQueue(DecodeLimits(call_pixels, runner.num_ranks, memory_budget))
        self._dropped: set[str] = set()  # of the running ones
        self._done: deque[Decoded] = deque()
        self._outstanding = 0
        self._fault: BaseException | None = None
        self._closed = False
        self.predicted_seconds = 0.0
        """Predicted seconds of the decoding now running; written only by the decoder's thread."""
        self._thread = threading.Thread(target=self._run, name="diffuserve-decoder", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """Number of requests that were put in and whose end was not collected yet."""
        return self._outstanding

    @property
    def held_bytes(self) -> int:
        """Bytes held by clips in decoding, and needed by the images that are decoded now or next."""
        with self._changed:
            return self._queue.held_bytes(self._num_slots) if self._queue else 0

    def put(self, state: RequestState) -> None:
        """Decode a request."""
        with self._changed:
            self._queue.put(self._queued(state))
            self._outstanding += 1
            self._note_work()

    def collect(self) -> list[Decoded]:
        """Return what was decoded since the last call; never block. Collecting a chunk consumes it.

        Raise the error that ended the thread, if there is one: queued requests will never be decoded.
        """
        with self._changed:
            if self._fault is not None:
                raise self._fault
            done = list(self._done)
            self._done.clear()
            self._outstanding -= sum(decoded.is_final for decoded in done)
            for decoded in done:
                if not decoded.is_final:
                    self._queue.count_unconsumed(decoded.state.request_id, -1)
            self._note_work()
            return done

    def hold_frames(self, request_id: str) -> None:
        """Count a chunk of the request as not yet consumed; it does nothing for one that has ended."""
        with self._changed:
            self._queue.count_unconsumed(request_id, +1)

    def release_frames(self, request_id: str) -> None:
        """Count a chunk of the request as consumed."""
        with self._changed:
            self._queue.count_unconsumed(request_id, -1)
            self._note_work()

    def yield_to(self, step_priority: int | None) -> None:
        """Hold back clips of a lower priority than that of the step which comes next, `None` if none does.

        It has all core slots then.
        """
        with self._changed:
            self._queue.yield_to(step_priority)
            self._stages.set_busy(Stage.DECODE, bool(self._queue.running))
            self._note_work()

    def drop(self, request_id: str) -> None:
        """Forget a request; charge it the predicted time of a decode in progress, which nobody waits for."""
        with self._changed:
            if (waiting := self._queue.remove(request_id)) is not None:
                self._end_dropped(waiting)
                return
            for request in self._queue.running:
                if request.request_id == request_id:
                    self._dropped.add(request_id)
                    fit, stopwatch = self._cost_model.fit, request.state.stopwatch
                    stopwatch.device_seconds += fit.decode_seconds([self._workload(request)])

    def close(self) -> None:
        """Drop waiting requests, and stop the thread after its current decode."""
        with self._changed:
            self._closed = True
            for request in self._queue.clear():
                request.close()
            self._changed.notify()
        self._thread.join()

    @property
    def _num_slots(self) -> int:
        return self._stages.num_core_slots(Stage.DECODE)

    def _queued(self, state: RequestState) -> QueuedDecode:
        pipeline, mark = self._runner.pipeline, self._stages.mark()
        if self._runner.decodes_in_chunks(state):
            return QueuedDecode(state, mark, ClipDecoding(state, decode_bytes(pipeline, state.params)))
        return QueuedDecode(state, mark, image_bytes=pipeline.decode_bytes(state.params))

    def _run(self) -> None:
        try:
            self._decode_until_closed()
        except BaseException as error:  # without this, callers would wait for their images forever
            with self._changed:
                self._fault = error
            self._on_decoded()

    def _decode_until_closed(self) -> None:
        while groups := self._next_groups():
            decoded = self._decode(groups)
            with self._changed:
                self._take_back(decoded)
            del groups, decoded  # otherwise the last images stay in memory until the next request
            self._on_decoded()

    def _next_groups(self) -> list[Group]:
        """Wait for work, and return a group for each core slot of the stage; `[]` once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.has_work or self._closed)
            return [] if self._closed else self._queue.take(max(1, self._num_slots))

    def _decode(self, groups: list[Group]) -> list[Decoded]:
        running = self._queue.running
        for request in running:
            request.state.stopwatch.begin_decoding()
        wanted = [self._workload(request) for request in running]
        self.predicted_seconds = self._cost_model.fit.decode_seconds(wanted)
        run = self._stages.run(
            Stage.DECODE,
            [partial(self._decode_group, group) for group in groups],
            self._cost_model.expected_decode_seconds(wanted),
            after=running[-1].mark,
        )
        self.predicted_seconds = 0.0
        decoded = [each for group in run.results for each in group]
        workloads = [self._workload(*pair) for pair in zip(running, decoded, strict=True)]
        has_failed = any(isinstance(each.outcome, Exception) for each in decoded)
        tried_again = any(request.state.exclusive for request in running)
        if run.share == 1.0 and len(groups) == 1 and not has_failed and not tried_again:
            self._cost_model.observe_decode(workloads, run.seconds)
        _charge(running, workloads, run.device_seconds)
        return decoded

    def _workload(self, request: QueuedDecode, decoded: Decoded | None = None) -> Workload:
        """Return the size of the request's turn: of its images, or of the clip's chunk."""
        if request.clip is None:
            return request.state.turn_workload
        spec, params = self._runner.pipeline.spec, request.state.params
        if decoded is not None and isinstance(decoded.outcome, FrameChunk):
            start, count = decoded.outcome.start, len(decoded.outcome.frames)
        else:
            start, count = request.clip.start, spec.temporal_stride if request.clip.start else 1
        return spec.chunk_workload(params, start, start + count)

    def _decode_group(self, group: Group) -> list[Decoded]:
        if (clip := group[0].clip) is not None:
            return [Decoded(clip.state, self._runner.decode_chunk(clip))]
        states = [request.state for request in group]
        outcomes = self._runner.decode(states)
        return [Decoded(state, outcome) for state, outcome in zip(states, outcomes, strict=True)]

    def _take_back(self, decoded: list[Decoded]) -> None:
        """Pass on what was decoded, and put requests that go on at the end of their queue."""
        running, self._queue.running = self._queue.running, []
        for request, each in zip(running, decoded, strict=True):
            is_clip, outcome = request.clip is not None, each.outcome
            if is_clip and request.request_id in self._dropped:
                self._end_dropped(request)
            elif isinstance(outcome, FrameChunk):
                self._pass_on(request, each)
            elif isinstance(outcome, Exception) or is_clip:
                self._end(request, each)
            else:
                self._keep(request, outcome)
        self._dropped = set()
        self._stages.set_busy(Stage.DECODE, self._queue.has_work)

    def _pass_on(self, request: QueuedDecode, decoded: Decoded) -> None:
        """Collect a chunk; the last one also ends its request."""
        state, clip, chunk = request.state, request.clip, decoded.outcome
        assert clip is not None
        assert isinstance(chunk, FrameChunk)
        self._done.append(decoded)
        self._queue.count_unconsumed(state.request_id, +1)
        if not state.options.stream_frames:
            state.keep(chunk)
        if clip.is_done:
            self._end(request, Decoded(state, state.media))
        else:
            self._queue.put(request)

    def _keep(self, request: QueuedDecode, media: list[Media]) -> None:
        """Collect the images of a turn; end a request after its last images, or at once if it was dropped."""
        state = request.state
        state.media += media
        if len(state.media) < state.params.num_images and state.request_id not in self._dropped:
            self._queue.put(request)
        else:
            self._end(request, Decoded(state, state.media))

    def _end(self, request: QueuedDecode, decoded: Decoded) -> None:
        """Collect the end of a request, and free its memory on the device unless it is retried."""
        request.close()
        if not fails_for_lack_of_room(request.state, decoded.outcome):
            request.state.latents = None
        self._queue.forget(request.request_id)
        self._done.append(decoded)

    def _end_dropped(self, request: QueuedDecode) -> None:
        request.close()
        self._queue.forget(request.request_id)
        self._outstanding -= 1

    def _note_work(self) -> None:
        if self._queue.has_work:
            self._stages.set_busy(Stage.DECODE, True)
            self._changed.notify()


def _charge(requests: Group, workloads: list[Workload], device_seconds: float) -> None:
    """Split the time of a turn among its requests in proportion to their pixels."""
    total = sum(workload.num_pixels for workload in workloads)
    for request, workload in zip(requests, workloads, strict=True):
        request.state.stopwatch.device_seconds += device_seconds * workload.num_pixels / total

"""Decoding on a thread of its own, so that it never delays the next denoising step.

Images of one size are decoded together, as many as one call takes. A request that has more of them goes to
the end of the queue with the rest, so that none waits for more than a call's worth of each other. Clips are
decoded chunk by chunk: each chunk is a turn, clips take turns with one another, and images that wait have
every second turn, so that no image waits for more than one chunk, however many clips there are.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from diffuserve.domain.models.cost import Workload
from diffuserve.engine.admission import decode_bytes
from diffuserve.engine.clip_decoding import ClipDecoding
from diffuserve.engine.cost_model import CostModel
from diffuserve.engine.decode_queue import Decoded, QueuedDecode
from diffuserve.engine.model_runner import ModelRunner, fails_for_lack_of_room
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.request_state import RequestState
from diffuserve.engine.stages import Stage, StageExecutor
from diffuserve.models.frames import Frames

MOST_UNCONSUMED = 4
"""Chunks of a request that wait to be consumed while its next one is not decoded."""
_MOST_STEPS = 16  # in a row, for which clips that wait give way to steps of a higher priority


class Decoder:
    """Two queues, a thread, and a list of what was decoded.

    `on_decoded` is called from the thread whenever `collect` has something to return or to raise. A
    request's own failure is its outcome; any other error ends the thread, and `collect` raises it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        stages: StageExecutor,
        cost_model: CostModel,
        memory_budget: int,
        on_decoded: Callable[[], None],
    ) -> None:
        self._runner, self._stages, self._cost_model = runner, stages, cost_model
        self._memory_budget = memory_budget
        self._on_decoded = on_decoded
        self._changed = threading.Condition()  # guards all that follows
        self._images: deque[QueuedDecode] = deque()
        self._clips: deque[QueuedDecode] = deque()
        self._image_is_next = False
        self._running: list[QueuedDecode] = []
        self._dropped: set[str] = set()  # of the running ones
        self._unconsumed: dict[str, int] = {}
        self._least_priority: int | None = None  # of clips that take turns
        self._num_given_way = 0
        self._done: deque[Decoded] = deque()
        self._outstanding = 0
        self._fault: BaseException | None = None
        self._closed = False
        self.predicted_seconds = 0.0
        """Seconds that the decoding of this moment should take; written by the thread alone."""
        self._thread = threading.Thread(target=self._run, name="diffuserve-decoder", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """Number of requests put in and not yet collected to their end."""
        return self._outstanding

    def put(self, state: RequestState) -> None:
        with self._changed:
            clip = self._clip_of(state)
            queue = self._images if clip is None else self._clips
            image_bytes = 0 if clip else self._runner.pipeline.decode_bytes(state.params)
            queue.append(QueuedDecode(state, self._stages.mark(), clip, image_bytes))
            if state.wishes.stream_frames:
                self._unconsumed[state.request_id] = 0
            self._outstanding += 1
            self._note_work()

    @property
    def held_bytes(self) -> int:
        """Bytes that clips hold which are being decoded, and that images take which are or come next."""
        with self._changed:
            return self._clip_bytes() + self._image_bytes()

    def collect(self) -> list[Decoded]:
        """Return what was decoded since the last call; never block. Whoever collects a chunk consumes it.

        Raise the error that ended the thread, if one did: what was put in will never be decoded.
        """
        with self._changed:
            if self._fault is not None:
                raise self._fault
            done = list(self._done)
            self._done.clear()
            self._outstanding -= sum(decoded.is_final for decoded in done)
            for decoded in done:
                if not decoded.is_final:
                    self._count_unconsumed(decoded.state.request_id, -1)
            self._note_work()
            return done

    def hold(self, request_id: str) -> None:
        """Count a chunk of the request as not yet consumed; it does nothing for one that has ended."""
        with self._changed:
            self._count_unconsumed(request_id, +1)

    def release(self, request_id: str) -> None:
        """Count a chunk of the request as consumed."""
        with self._changed:
            self._count_unconsumed(request_id, -1)
            self._note_work()

    def give_way(self, priority: int | None) -> None:
        """Hold back clips of a lower priority than that of the step which comes next, `None` if none does.

        It has all core slots then. Clips that gave way for many steps in a row have a turn beside the next.
        """
        with self._changed:
            self._least_priority = priority
            waits = any(self._gives_way(request) for request in self._clips)
            self._num_given_way = self._num_given_way + 1 if waits else 0
            if self._num_given_way > _MOST_STEPS:
                self._num_given_way, self._least_priority = 0, None
            self._stages.set_busy(Stage.DECODE, bool(self._running))
            self._note_work()

    def drop(self, request_id: str) -> None:
        """Forget a request; what is being decoded of it counts by prediction, as nobody waits for it."""
        with self._changed:
            for request in (*self._images, *self._clips):
                if request.state.request_id == request_id:
                    (self._images if request.clip is None else self._clips).remove(request)
                    self._end_dropped(request)
                    return
            for request in self._running:
                if request.state.request_id == request_id:
                    self._dropped.add(request_id)
                    fit, stopwatch = self._cost_model.fit, request.state.stopwatch
                    stopwatch.device_seconds += fit.decode_seconds([self._workload(request)])

    def close(self) -> None:
        """Drop the requests that wait, and stop the thread after what it decodes."""
        with self._changed:
            self._closed = True
            for request in self._clips:
                request.close()
            self._images.clear()
            self._clips.clear()
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
                self._take_back(decoded)
            del groups, decoded  # or the last images would live until the next request
            self._on_decoded()

    def _next_groups(self) -> list[list[QueuedDecode]]:
        """Wait for work, and return a group for each core slot of the stage; `[]` once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work() or self._closed)
            if self._closed:
                return []
            groups: list[list[QueuedDecode]] = []
            while self._has_work() and len(groups) < max(1, self._stages.num_core_slots(Stage.DECODE)):
                groups.append(self._take_group())
                self._running += groups[-1]
            return groups

    def _has_work(self) -> bool:
        return bool(self._images) or self._next_clip() is not None

    def _next_clip(self) -> QueuedDecode | None:
        """Return the clip whose turn it is, of those whose chunks are consumed and that fit."""
        held = self._clip_bytes()
        for request in self._clips:
            is_consumed = self._unconsumed.get(request.state.request_id, 0) < MOST_UNCONSUMED
            if is_consumed and not self._gives_way(request) and self._fits(request.clip, held):
                return request
        return None

    def _gives_way(self, clip: QueuedDecode) -> bool:
        """Return whether a clip waits for steps of a higher priority."""
        return self._least_priority is not None and clip.state.wishes.priority < self._least_priority

    def _fits(self, clip: ClipDecoding | None, held: int) -> bool:
        """Return whether a clip may take its turn beside those that hold memory; one alone always may."""
        assert clip is not None
        return clip.is_open or not held or held + clip.num_bytes <= self._memory_budget

    def _clip_bytes(self) -> int:
        running = (request.clip for request in self._running)
        opened = (request.clip for request in self._clips if request.clip and request.clip.is_open)
        return sum(clip.num_bytes for clip in (*running, *opened) if clip is not None)

    def _image_bytes(self) -> int:
        """Return the most that images of one size take, as many as there are and as are decoded at once."""
        counts: Counter[object] = Counter()
        most = 0
        for request in (*self._running, *self._images):
            if request.clip is None:
                counts[request.size] += request.state.params.num_images
                most = max(
                    most, min(counts[request.size], self._images_at_once(request.state)) * request.image_bytes
                )
        return most

    def _images_at_once(self, state: RequestState) -> int:
        return self._images_in_a_call(state) * self._stages.num_core_slots(Stage.DECODE)

    def _images_in_a_call(self, state: RequestState) -> int:
        pixels = state.workload.num_pixels // state.params.num_images
        return max(1, self._runner.pipeline.max_decode_pixels // pixels)

    def _clip_of(self, state: RequestState) -> ClipDecoding | None:
        if not self._runner.decodes_in_chunks(state):
            return None
        return ClipDecoding(state, decode_bytes(self._runner.pipeline, state.params))

    def _take_group(self) -> list[QueuedDecode]:
        """Remove and return what takes the next turn: a clip for a chunk, or a group of images."""
        clip = self._next_clip()
        if clip is None or (self._images and self._image_is_next):
            self._image_is_next = False
            return self._take_images()
        self._image_is_next = True
        self._clips.remove(clip)
        return [clip]

    def _take_images(self) -> list[QueuedDecode]:
        """Remove and return the request that waited longest, and others of its size that fit with it."""
        group: list[QueuedDecode] = []
        pixels = 0
        for request in self._images:
            if group and request.size != group[0].size:
                continue
            self._take_turn(request.state)
            pixels += request.state.turn_workload.num_pixels
            if group and pixels > self._runner.pipeline.max_decode_pixels * self._runner.num_ranks:
                break
            group.append(request)
        for request in group:
            self._images.remove(request)
        return group

    def _take_turn(self, state: RequestState) -> None:
        """Choose the images that are decoded next: all with several ranks, of which each decodes requests."""
        if self._runner.num_ranks == 1:
            most = self._images_in_a_call(state)
            start, num_images = len(state.frames), state.params.num_images
            state.turn = range(start, min(start + most, num_images)) if num_images > most else None

    def _decode(self, groups: list[list[QueuedDecode]]) -> list[Decoded]:
        for request in self._running:
            request.state.stopwatch.begin_decoding()
        tasks = [partial(self._decode_group, group) for group in groups]
        wanted = [self._workload(request) for request in self._running]
        expected = self._cost_model.expected_decode_seconds(wanted)
        self.predicted_seconds = self._cost_model.fit.decode_seconds(wanted)
        run = self._stages.run(Stage.DECODE, tasks, expected, after=self._running[-1].mark)
        self.predicted_seconds = 0.0
        decoded = [each for group in run.results for each in group]
        workloads = [self._workload(*pair) for pair in zip(self._running, decoded, strict=True)]
        has_failed = any(isinstance(each.outcome, Exception) for each in decoded)
        tried_again = any(request.state.exclusive for request in self._running)
        if run.share == 1.0 and len(groups) == 1 and not has_failed and not tried_again:
            self._cost_model.observe_decode(workloads, run.seconds)
        _charge(self._running, workloads, run.device_seconds)
        return decoded

    def _workload(self, request: QueuedDecode, decoded: Decoded | None = None) -> Workload:
        """Return the size of the request's turn: of its images, or of what was or will be decoded."""
        if request.clip is None:
            return request.state.turn_workload
        spec, params = self._runner.pipeline.spec, request.state.params
        if decoded is not None and isinstance(decoded.outcome, FrameChunk):
            start, count = decoded.outcome.start, len(decoded.outcome.frames)
        else:
            start, count = request.clip.start, spec.temporal_stride if request.clip.start else 1
        return spec.chunk_workload(params, start, start + count)

    def _decode_group(self, group: list[QueuedDecode]) -> list[Decoded]:
        if (clip := group[0].clip) is not None:
            return [Decoded(clip.state, self._runner.decode_chunk(clip))]
        states = [request.state for request in group]
        outcomes = self._runner.decode(states)
        return [Decoded(state, outcome) for state, outcome in zip(states, outcomes, strict=True)]

    def _take_back(self, decoded: list[Decoded]) -> None:
        """Pass on what was decoded, and put requests that go on at the end of their queue."""
        for request, each in zip(self._running, decoded, strict=True):
            is_clip, outcome = request.clip is not None, each.outcome
            if is_clip and request.state.request_id in self._dropped:
                self._end_dropped(request)
            elif isinstance(outcome, FrameChunk):
                self._pass_on(request, each)
            elif isinstance(outcome, Exception) or is_clip:
                self._end(request, each)
            else:
                self._keep(request, outcome)
        self._running, self._dropped = [], set()
        self._stages.set_busy(Stage.DECODE, self._has_work())

    def _pass_on(self, request: QueuedDecode, decoded: Decoded) -> None:
        """Pass on a chunk, and after the last one the end of its request."""
        state, clip, chunk = request.state, request.clip, decoded.outcome
        assert clip is not None
        assert isinstance(chunk, FrameChunk)
        self._done.append(decoded)
        self._count_unconsumed(state.request_id, +1)
        if not state.wishes.stream_frames:
            state.keep(chunk)
        if clip.is_done:
            self._end(request, Decoded(state, state.frames))
        else:
            self._clips.append(request)

    def _keep(self, request: QueuedDecode, images: list[Frames]) -> None:
        """Collect the images of a turn; the last ones end their request, and a dropped one ends with any."""
        state = request.state
        state.frames += images
        if len(state.frames) < state.params.num_images and state.request_id not in self._dropped:
            self._images.append(request)
        else:
            self._end(request, Decoded(state, state.frames))

    def _end(self, request: QueuedDecode, decoded: Decoded) -> None:
        """Pass on the end of a request, and free what it has on the device, unless it is tried again."""
        request.close()
        if not fails_for_lack_of_room(request.state, decoded.outcome):
            request.state.latents = None
        self._unconsumed.pop(request.state.request_id, None)
        self._done.append(decoded)

    def _end_dropped(self, request: QueuedDecode) -> None:
        request.close()
        self._unconsumed.pop(request.state.request_id, None)
        self._outstanding -= 1

    def _count_unconsumed(self, request_id: str, change: int) -> None:
        if request_id in self._unconsumed:
            self._unconsumed[request_id] = max(0, self._unconsumed[request_id] + change)

    def _note_work(self) -> None:
        if self._has_work():
            self._stages.set_busy(Stage.DECODE, True)
            self._changed.notify()


def _charge(requests: list[QueuedDecode], workloads: list[Workload], device_seconds: float) -> None:
    """Split the time of a turn among its requests in proportion to their pixels."""
    total = sum(workload.num_pixels for workload in workloads)
    for request, workload in zip(requests, workloads, strict=True):
        request.state.stopwatch.device_seconds += device_seconds * workload.num_pixels / total

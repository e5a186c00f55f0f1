"""The choice of what is decoded next: turns, clips that wait for steps, and what fits (INV-5).

Images of one size are decoded together, as many as one call takes. A request that has more of them goes to
the end of the queue with the rest, so that none waits for more than a call's worth of each other. Clips are
decoded chunk by chunk: each chunk is a turn, clips take turns with one another, and images that wait have
every second turn, so that no image waits for more than one chunk, however many clips there are.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine.requests.clip_decoding import ClipDecoding
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.models.frames import Media

MAX_UNCONSUMED = 4
"""Chunks of a request that wait to be consumed while its next one is not decoded."""
_MAX_STEPS = 16  # in a row, for which waiting clips yield to steps of a higher priority


@dataclass(frozen=True)
class Decoded:
    """The next frames of a request, or its end: all that it has made, or an exception."""

    state: RequestState
    outcome: FrameChunk | list[Media] | Exception

    @property
    def is_final(self) -> bool:
        return not isinstance(self.outcome, FrameChunk)


@dataclass(frozen=True, eq=False)
class QueuedDecode:
    """A request that waits for decoding; `mark` identifies the device work that makes its latents.

    It has clips to decode, or images, each of which takes `image_bytes`.
    """

    state: RequestState
    mark: object = None
    clip: ClipDecoding | None = None
    image_bytes: int = 0

    @property
    def request_id(self) -> str:
        return self.state.request_id

    @property
    def size(self) -> Hashable:
        """Width, height, number of frames, seconds; requests are decoded together only if these are equal."""
        params = self.state.params
        return (params.width, params.height, params.num_frames, params.seconds)

    @property
    def num_images(self) -> int:
        return self.state.params.num_images

    @property
    def image_pixels(self) -> int:
        """Pixels of each of its images."""
        return self.state.workload.num_pixels // self.num_images

    def close(self) -> None:
        """Free the memory that decoding the clip holds."""
        if self.clip is not None:
            self.clip.close()


@dataclass(frozen=True)
class DecodeLimits:
    """The pixels of one call, which each of the ranks makes, and the bytes that clips may hold together."""

    call_pixels: int
    num_ranks: int
    clip_bytes: int


Group = list[QueuedDecode]


class DecodeQueue:
    """Requests that wait to be decoded, or are: no thread, no clock and no computing.

    Its owner, the decoder, locks it. Clips of a lower priority than `step_priority`, that of the step which
    comes next, wait for it.
    """

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self._images: deque[QueuedDecode] = deque()
        self._clips: deque[QueuedDecode] = deque()
        self._image_is_next = False
        self._unconsumed: dict[str, int] = {}
        self._step_priority: int | None = None
        self._num_given_way = 0
        self.running: Group = []

    def __len__(self) -> int:
        return len(self._images) + len(self._clips) + len(self.running)

    @property
    def has_work(self) -> bool:
        """Return whether anything may be decoded now."""
        return bool(self._images) or self._next_clip() is not None

    def put(self, request: QueuedDecode) -> None:
        """Add a request at the end of its queue, new or with what is left of it."""
        (self._images if request.clip is None else self._clips).append(request)
        if request.state.options.stream_frames:
            self._unconsumed.setdefault(request.request_id, 0)

    def take(self, num_groups: int) -> list[Group]:
        """Have at most so many groups run, each a clip for a chunk, or images of one size."""
        groups: list[Group] = []
        while len(groups) < num_groups and self.has_work:
            groups.append(self._take_group())
            self.running += groups[-1]
        return groups

    def remove(self, request_id: str) -> QueuedDecode | None:
        """Remove and return a request that waits."""
        for queue in (self._images, self._clips):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    return request
        return None

    def forget(self, request_id: str) -> None:
        """Count no more of the chunks of a request, which has ended."""
        self._unconsumed.pop(request_id, None)

    def clear(self) -> list[QueuedDecode]:
        """Remove and return all that waits."""
        waiting = [*self._images, *self._clips]
        self._images.clear()
        self._clips.clear()
        return waiting

    def count_unconsumed(self, request_id: str, change: int) -> None:
        """Count chunks of a request that somebody has yet to consume; nothing for one that has ended."""
        if request_id in self._unconsumed:
            self._unconsumed[request_id] = max(0, self._unconsumed[request_id] + change)

    def yield_to(self, step_priority: int | None) -> None:
        """Hold back clips of a lower priority than that of the step which comes next, `None` if none does.

        Clips that waited for many steps in a row have a turn beside the next.
        """
        self._step_priority = step_priority
        waits = any(self._yields(request) for request in self._clips)
        self._num_given_way = self._num_given_way + 1 if waits else 0
        if self._num_given_way > _MAX_STEPS:
            self._num_given_way, self._step_priority = 0, None

    def held_bytes(self, num_groups: int) -> int:
        """Return the bytes that clips hold in decoding, and images that are or come next.

        Of images these are the most that those of one size take: all there are, or as many as so many groups.
        """
        return self._clip_bytes() + max(self._image_bytes(num_groups), default=0)

    def _next_clip(self) -> QueuedDecode | None:
        """Return the clip whose turn it is, of those whose chunks are consumed and that fit."""
        held = self._clip_bytes()
        for request in self._clips:
            is_consumed = self._unconsumed.get(request.request_id, 0) < MAX_UNCONSUMED
            if is_consumed and not self._yields(request) and self._fits(request.clip, held):
                return request
        return None

    def _yields(self, clip: QueuedDecode) -> bool:
        """Return whether a clip waits for steps of a higher priority."""
        return self._step_priority is not None and clip.state.options.priority < self._step_priority

    def _fits(self, clip: ClipDecoding | None, held: int) -> bool:
        """Return whether a clip may take its turn beside those that hold memory; one alone always may."""
        assert clip is not None
        return clip.is_open or not held or held + clip.num_bytes <= self._limits.clip_bytes

    def _clip_bytes(self) -> int:
        opened = (request for request in self._clips if request.clip is not None and request.clip.is_open)
        return sum(request.clip.num_bytes for request in (*self.running, *opened) if request.clip is not None)

    def _image_bytes(self, num_groups: int) -> Iterator[int]:
        counts: Counter[object] = Counter()
        for request in (*self.running, *self._images):
            if request.clip is None:
                counts[request.size] += request.num_images
                at_once = self._images_in_a_call(request) * num_groups
                yield min(counts[request.size], at_once) * request.image_bytes

    def _images_in_a_call(self, request: QueuedDecode) -> int:
        least = request.num_images if request.state.workload.is_whole else 1
        return max(least, self._limits.call_pixels // request.image_pixels)

    def _take_group(self) -> Group:
        """Remove and return what takes the next turn: a clip for a chunk, or a group of images."""
        clip = self._next_clip()
        if clip is None or (self._images and self._image_is_next):
            self._image_is_next = False
            return self._take_images()
        self._image_is_next = True
        self._clips.remove(clip)
        return [clip]

    def _take_images(self) -> Group:
        """Remove and return the request that waited longest, and others of its size that fit with it."""
        first = self._images[0]
        group = list(self._that_fit(request for request in self._images if request.size == first.size))
        for request in group:
            self._images.remove(request)
        return group

    def _that_fit(self, requests: Iterable[QueuedDecode]) -> Iterator[QueuedDecode]:
        """Yield the first requests that one call takes on every rank, each with its turn: at least one."""
        pixels = 0
        for request in requests:
            is_first = not pixels
            turn = self._turn_of(request)
            pixels += request.image_pixels * (request.num_images if turn is None else len(turn))
            if not is_first and pixels > self._limits.call_pixels * self._limits.num_ranks:
                return
            request.state.turn = turn
            yield request

    def _turn_of(self, request: QueuedDecode) -> range | None:
        """Return the images that are decoded next: all with several ranks, of which each decodes requests."""
        most, start = self._images_in_a_call(request), len(request.state.media)
        if self._limits.num_ranks > 1 or request.num_images <= most:
            return None
        return range(start, min(start + most, request.num_images))

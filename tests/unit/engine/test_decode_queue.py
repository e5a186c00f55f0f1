"""The decode queue: what is decoded next, whatever waits."""

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.decoding.decode_queue import DecodeLimits, DecodeQueue, Group, QueuedDecode
from diffuserve.engine.requests.clip_decoding import ClipDecoding
from diffuserve.engine.requests.request_state import RequestState, ServingOptions
from diffuserve.models.frames import Media
from diffuserve.testing.fake_pipeline import FakePipeline

PIPELINE = FakePipeline()
SIDE = 16
CLIP_BYTES = 1_000
LIMITS = st.builds(
    DecodeLimits,
    call_pixels=st.integers(0, 4).map(lambda count: count * SIDE**2),
    num_ranks=st.integers(1, 2),
    clip_bytes=st.integers(0, 3).map(lambda count: count * CLIP_BYTES),
)
IMAGES = st.tuples(st.integers(1, 5), st.just(1))
CLIPS = st.tuples(st.integers(1, 2), st.integers(2, 4))
"""Images, or clips and the frames of each."""


def queued(number: int, num_images: int, num_frames: int, priority: int = 0) -> QueuedDecode:
    wanted = GenerationParams(
        prompt="a", width=SIDE, height=SIDE, num_images=num_images, num_frames=num_frames
    )
    params = PIPELINE.spec.resolve(wanted, seed=1)
    state = RequestState(
        request_id=str(number),
        params=params,
        workload=PIPELINE.spec.workload(params),
        step_bytes=0,
        schedule=PIPELINE.schedule(params),
        arrival=number,
        options=ServingOptions(priority=priority),
        latents=torch.zeros(PIPELINE.latents_shape(params)),
    )
    return QueuedDecode(state, clip=ClipDecoding(state, CLIP_BYTES) if num_frames > 1 else None)


def decode(queue: DecodeQueue, group: Group) -> None:
    """Decode a group, and put back what is left of its requests."""
    for request in group:
        state, turn = request.state, request.state.turn
        if request.clip is not None:
            request.clip.next_chunk(PIPELINE)
            is_done = request.clip.is_done
        else:
            drawn = request.num_images if turn is None else len(turn)
            state.media += [Media([Image.new("RGB", (1, 1))])] * drawn
            is_done = len(state.media) == request.num_images
        if not is_done:
            queue.put(request)
    queue.running = []


def turns_of(queue: DecodeQueue) -> list[Group]:
    """Decode all, one group after another, and return the groups."""
    turns = []
    while groups := queue.take(1):
        turns += groups
        decode(queue, groups[0])
    return turns


def filled(limits: DecodeLimits, requests: Sequence[tuple[int, int]]) -> DecodeQueue:
    queue = DecodeQueue(limits)
    for number, request in enumerate(requests):
        queue.put(queued(number, *request))
    return queue


@given(LIMITS, st.lists(IMAGES | CLIPS, max_size=8))
def test_everything_is_decoded_once(limits: DecodeLimits, requests: list[tuple[int, int]]) -> None:
    queue = filled(limits, requests)
    states = {request.request_id: request.state for group in turns_of(queue) for request in group}
    assert len(states) == len(requests)
    assert len(queue) == 0
    for state in states.values():
        is_clip = state.clip_frames > 1
        assert len(state.media) == (0 if is_clip else state.params.num_images)
        assert state.num_decoded == (state.num_frames if is_clip else 0)


@given(LIMITS, st.lists(IMAGES, min_size=1, max_size=8))
def test_a_call_has_no_more_pixels_than_it_takes_but_for_a_single_request(
    limits: DecodeLimits, requests: list[tuple[int, int]]
) -> None:
    queue = filled(limits, requests)
    while groups := queue.take(1):
        sizes = [request.state.turn_workload.num_pixels for request in groups[0]]
        assert len(sizes) == 1 or sum(sizes) <= limits.call_pixels * limits.num_ranks
        assert limits.num_ranks > 1 or sizes[0] <= max(limits.call_pixels, SIDE**2)
        decode(queue, groups[0])


@given(LIMITS, st.lists(IMAGES, max_size=6), st.lists(CLIPS, min_size=1, max_size=4))
def test_no_image_waits_for_two_chunks_in_a_row_and_no_clip_for_two_calls(
    limits: DecodeLimits, images: list[tuple[int, int]], clips: list[tuple[int, int]]
) -> None:
    kinds = "".join(
        "i" if group[0].clip is None else "c" for group in turns_of(filled(limits, [*images, *clips]))
    )
    mixed = kinds[: min(kinds.rfind("i"), kinds.rfind("c")) + 1]
    assert "cc" not in mixed
    assert "ii" not in mixed


@given(LIMITS, st.lists(CLIPS, min_size=1, max_size=6), st.integers(1, 4))
def test_clips_hold_what_they_may_together_but_for_one_alone(
    limits: DecodeLimits, clips: list[tuple[int, int]], num_groups: int
) -> None:
    queue = filled(limits, clips)
    while groups := queue.take(num_groups):
        assert queue.held_bytes(num_groups) <= max(limits.clip_bytes, CLIP_BYTES)
        for group in groups:
            decode(queue, group)


def test_a_clip_gives_way_to_steps_of_a_higher_priority_until_it_has_its_turn() -> None:
    queue = DecodeQueue(DecodeLimits(0, 1, CLIP_BYTES))
    queue.put(queued(0, 1, 3, priority=-1))
    turns = []
    for _ in range(40):
        queue.yield_to(0)
        turns.append(queue.has_work)
    assert turns == ([False] * 16 + [True]) * 2 + [False] * 6
    queue.yield_to(-1)
    assert queue.has_work

"""Clips in the engine: decoded chunk by chunk, passed on as they come, or not decoded here at all."""

import threading
from collections.abc import Iterator, Sequence
from itertools import chain

import pytest
import torch
from torch import Tensor

from diffuserve.domain.errors import (
    InvalidParams,
    NumericalFailure,
    OutOfMemory,
    RequestAborted,
    RequestFailed,
)
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.decoding.decode_queue import MAX_UNCONSUMED
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.models.frames import Frames, media_of
from diffuserve.testing.fake_pipeline import FakePipeline
from support.clip_engine import SPEC, WatchedPipeline, clip, drain, image
from support.waiting import HANG_SECONDS


@pytest.fixture
def pipeline() -> WatchedPipeline:
    return WatchedPipeline(spec=SPEC)


@pytest.fixture
def engine(pipeline: WatchedPipeline) -> Iterator[Engine]:
    with Engine(pipeline, EngineConfig(num_threads=1)) as engine:
        yield engine
    assert pipeline.num_open == 0


def as_bytes(frames: Frames) -> list[bytes]:
    return [frame.tobytes() for frame in frames]


def decoded_whole(params: GenerationParams) -> list[list[bytes]]:
    """Return the frames of each clip as a whole decode gives them."""
    pipeline = FakePipeline(spec=SPEC)
    with Engine(pipeline) as engine:
        request_id = engine.add(params, until_denoised=True)
        result = next(output.result for output in drain(engine) if output.finished)
    assert result is not None
    assert result.request_id == request_id
    assert result.latents is not None
    (clips,) = pipeline.decode([result.latents], [result.params])
    return [as_bytes(media_of(frames).frames) for frames in clips]


@pytest.mark.parametrize("num_frames", [1, 5, 17])
@pytest.mark.parametrize("num_images", [1, 3])
def test_frames_are_the_same_streamed_collected_and_decoded_as_a_whole(
    engine: Engine, num_frames: int, num_images: int
) -> None:
    params = clip(num_frames=num_frames, num_images=num_images)
    whole = decoded_whole(params)
    assert [len(frames) for frames in whole] == [num_frames] * num_images
    assert [as_bytes(frames) for frames in engine.generate(params).frames] == whole
    engine.add(params, stream_frames=True)
    outputs = drain(engine)
    result = outputs[-1].result
    assert result is not None
    if num_frames == 1:
        assert [as_bytes(frames) for frames in result.frames] == whole
        return
    assert result.frames == []
    chunks = [output.chunk for output in outputs if output.chunk is not None]
    assert [(chunk.index, chunk.start) for chunk in chunks] == [
        (index, start) for index in range(num_images) for start in (0, *range(1, num_frames, 4))
    ]
    for index, frames in enumerate(whole):
        own = [chunk for chunk in chunks if chunk.index == index]
        assert [frame for chunk in own for frame in as_bytes(chunk.frames)] == frames
        assert [chunk.is_last for chunk in own] == [False] * (len(own) - 1) + [True]


def test_the_images_of_a_result_are_the_first_frames(engine: Engine) -> None:
    result = engine.generate(clip(num_images=2))
    assert result.images == [frames[0] for frames in result.frames]


@pytest.mark.parametrize("stream_frames", [False, True])
def test_the_decoded_frames_are_counted(engine: Engine, stream_frames: bool) -> None:
    engine.add(clip(num_frames=9, num_images=2), stream_frames=stream_frames)
    outputs = drain(engine)
    assert [output.num_decoded for output in outputs] == [0, 1, 5, 9, 10, 14, 18, 18]
    assert {output.num_frames for output in outputs} == {18}


def test_the_preview_of_a_clip_is_a_strip_of_frames(engine: Engine) -> None:
    engine.add(clip(num_inference_steps=2), preview=True)
    previews = [output.preview for output in drain(engine) if output.latent_previews]
    assert [preview.size for preview in previews if preview] == [(5 * 4 * 16, 4 * 16)] * 2


class Turns:
    """Records the decoder's turns; the first lasts until `go`, so that all requests meet in the queue."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.go = threading.Event()

    def __call__(self, params: Sequence[GenerationParams]) -> None:
        self.taken.append("+".join(wanted.prompt for wanted in params))
        assert self.go.wait(HANG_SECONDS)


def decode_together(engine: Engine, turns: Turns, requests: Sequence[GenerationParams]) -> None:
    """Denoise all requests, and only then let the decoder go on."""
    ids = {engine.add(params) for params in requests}
    while not turns.go.is_set():
        outputs = engine.step()
        ids -= {output.request_id for output in outputs if output.step == output.num_steps}
        if not ids:
            turns.go.set()
    drain(engine)


def test_clips_take_turns_and_images_have_every_second_one(pipeline: WatchedPipeline, engine: Engine) -> None:
    turns = pipeline.on_decode = Turns()
    images = [image(f"{2**i}", width=16 * 2**i, height=64 // 2**i) for i in range(3)]
    decode_together(engine, turns, [clip("a"), clip("b"), *images])
    assert turns.taken == ["a", "1", "b", "2", "a", "4", *"bababab"]


def test_images_of_one_size_share_a_turn_between_the_chunks_of_a_clip(
    pipeline: WatchedPipeline, engine: Engine
) -> None:
    turns = pipeline.on_decode = Turns()
    decode_together(engine, turns, [clip("a"), image("x"), image("y")])
    assert turns.taken == ["a", "x+y", "a", "a", "a", "a"]


def test_denoising_goes_on_between_the_chunks_of_a_clip(pipeline: WatchedPipeline, engine: Engine) -> None:
    """Each chunk waits for a step of the image beside it, which would hang if it waited for the clip."""
    stepped = threading.Semaphore(0)
    pipeline.on_denoise = lambda _: stepped.release()
    pipeline.on_decode = lambda params: _acquire(stepped) if params[0].num_frames != 1 else None
    results = engine.generate([clip(), image(num_inference_steps=8)])
    assert [len(result.frames[0]) for result in results] == [17, 1]


def _acquire(semaphore: threading.Semaphore) -> None:
    assert semaphore.acquire(timeout=HANG_SECONDS)


def test_an_abort_takes_effect_between_chunks(pipeline: WatchedPipeline, engine: Engine) -> None:
    request_id = engine.add(clip(num_frames=81), stream_frames=True)
    while not any(output.chunk for output in engine.step()):
        pass
    engine.abort(request_id)
    (output,) = [output for output in drain(engine) if output.finished]
    assert isinstance(output.error, RequestAborted)
    assert pipeline.num_open == 0
    assert len(engine.generate(clip()).frames[0]) == 17


def test_an_abort_within_a_chunk_takes_effect_after_it(pipeline: WatchedPipeline, engine: Engine) -> None:
    is_decoding, go = threading.Event(), threading.Event()

    def hold(_params: Sequence[GenerationParams]) -> None:
        is_decoding.set()
        assert go.wait(HANG_SECONDS)

    pipeline.on_decode = hold
    request_id = engine.add(clip())
    engine.step()
    assert is_decoding.wait(HANG_SECONDS)
    state = engine._core.requests.find(request_id)
    assert state is not None
    before = state.stopwatch.device_seconds
    engine.abort(request_id)
    (output,) = engine.step()
    assert isinstance(output.error, RequestAborted)
    assert output.device_seconds > before, "the chunk under way counts, although nobody waits for it"
    assert pipeline.num_open == 1
    go.set()
    assert engine.step() == []
    assert pipeline.num_open == 0


@pytest.mark.parametrize("chunk", range(4))
@pytest.mark.parametrize(
    ("error", "kind"), [(RuntimeError("boom"), RequestFailed), (MemoryError(), OutOfMemory)]
)
def test_a_chunk_that_fails_fails_its_request_alone(
    pipeline: WatchedPipeline, engine: Engine, chunk: int, error: Exception, kind: type[Exception]
) -> None:
    calls: list[str] = []

    def fail(params: Sequence[GenerationParams]) -> None:
        calls.extend(wanted.prompt for wanted in params)
        if params[0].prompt == "bad" and calls.count("bad") > chunk:
            raise error

    pipeline.on_decode = fail
    good, bad, still = engine.generate([clip("good"), clip("bad"), image()], return_exceptions=True)
    assert type(bad) is kind
    assert isinstance(still, GenerationResult)
    assert isinstance(good, GenerationResult)
    assert [as_bytes(good.frames[0])] == decoded_whole(clip("good"))


def test_a_clip_that_ends_early_fails(
    pipeline: WatchedPipeline, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "decode_chunks", lambda latents, params: iter([]))
    with pytest.raises(RequestFailed, match="0 frames of a clip of 17"):
        engine.generate(clip())


@pytest.mark.parametrize("until_denoised", [False, True])
def test_latents_that_are_not_finite_fail_alone(
    pipeline: WatchedPipeline, engine: Engine, until_denoised: bool
) -> None:
    pipeline.poison = lambda params, prediction: prediction * (torch.nan if params.prompt == "bad" else 1)
    bad = engine.add(clip("bad"), until_denoised=until_denoised)
    engine.add(clip("good"), until_denoised=until_denoised)
    errors = {output.request_id: output.error for output in drain(engine) if output.finished}
    assert isinstance(errors.pop(bad), NumericalFailure)
    assert list(errors.values()) == [None]


@pytest.mark.parametrize("stream_frames", [False, True])
def test_a_clip_that_does_not_fit_beside_others_is_decoded_again_by_itself(
    pipeline: WatchedPipeline, engine: Engine, stream_frames: bool
) -> None:
    """Each of its frames comes once, though it ran out of memory in its third chunk."""
    turns: list[str] = []

    def refuse(params: Sequence[GenerationParams]) -> None:
        turns.append(params[0].prompt)
        if params[0].prompt == "big" and turns.count("big") == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    pipeline.on_decode = refuse
    big = engine.add(clip("big", num_images=2), stream_frames=stream_frames)
    engine.add(clip("other"))
    outputs = [output for output in drain(engine) if output.request_id == big]
    result = outputs[-1].result
    assert result is not None
    chunks = [output.chunk for output in outputs if output.chunk is not None]
    pieces = [chunk.frames for chunk in chunks] if stream_frames else result.frames
    expected = chain.from_iterable(decoded_whole(clip("big", num_images=2)))
    assert as_bytes(list(chain.from_iterable(pieces))) == list(expected)
    assert turns.count("big") == 3 + 10
    assert turns[-10:] == ["big"] * 10, "nothing else is decoded beside it"


def test_a_clip_whose_frames_nobody_consumes_waits_while_others_go_on(
    pipeline: WatchedPipeline, engine: Engine
) -> None:
    turns: list[str] = []
    pipeline.on_decode = lambda params: turns.append(params[0].prompt)
    held = engine.add(clip("held", num_frames=81), stream_frames=True)
    num_chunks = 0
    other = engine.add(clip("other", num_frames=81))
    is_done = False
    while not is_done:
        for output in engine.step():
            is_done |= output.request_id == other and output.finished
            if output.chunk is not None:
                engine.hold_frames(held)
                num_chunks += 1
    assert turns.count("held") == num_chunks == MAX_UNCONSUMED
    outputs: list[StepOutput] = []
    while not any(output.finished for output in outputs):
        engine.release_frames(held)
        outputs = engine.step()
        num_chunks += sum(output.chunk is not None for output in outputs)
        engine.hold_frames(held)
    assert num_chunks == 21


def test_frames_that_no_step_has_returned_are_bounded(pipeline: WatchedPipeline, engine: Engine) -> None:
    num_decoded = threading.Semaphore(0)
    pipeline.on_decode = lambda _: num_decoded.release()
    engine.add(clip(num_frames=81), stream_frames=True)
    engine.step()
    for _ in range(MAX_UNCONSUMED):
        _acquire(num_decoded)
    assert not num_decoded.acquire(timeout=0.1), "it waits until the next step"
    assert sum(len(output.chunk.frames) for output in drain(engine) if output.chunk) == 81


@pytest.mark.parametrize("params", [image(num_images=2), clip(), clip(num_images=2)])
def test_a_request_is_denoised_by_one_engine_and_decoded_by_another(
    pipeline: WatchedPipeline, engine: Engine, params: GenerationParams
) -> None:
    with Engine(FakePipeline(spec=SPEC)) as denoising:
        denoising.add(params, until_denoised=True)
        outputs = drain(denoising)
    denoised = outputs[-1].result
    assert denoised is not None
    assert denoised.frames == []
    assert denoised.latents is not None
    assert denoised.latents.device.type == "cpu"
    engine.add(denoised.params, latents=denoised.latents)
    decoded = drain(engine)[-1].result
    assert decoded is not None
    assert [as_bytes(frames) for frames in decoded.frames] == decoded_whole(params)
    assert pipeline.encoded_batches == pipeline.denoised_batches == []
    timings = decoded.timings
    assert timings.denoise_seconds == timings.encode_seconds == 0
    assert 0 < timings.device_seconds <= timings.decode_seconds


@pytest.mark.parametrize(
    "latents", [torch.zeros(1, 3, 4, 4, 4), torch.zeros(2, 3, 5, 4, 4), torch.zeros(1, 3, 5, 4, 4).int()]
)
def test_latents_of_another_shape_are_refused(engine: Engine, latents: Tensor) -> None:
    with pytest.raises(InvalidParams, match=r"latents.*of the shape \(1, 3, 5, 4, 4\)"):
        engine.add(clip(), latents=latents)


def test_a_request_with_latents_can_be_aborted(pipeline: WatchedPipeline, engine: Engine) -> None:
    shape = pipeline.latents_shape(SPEC.resolve(clip(), seed=0))
    request_id = engine.add(clip(), latents=torch.zeros(shape))
    engine.abort(request_id)
    (output,) = engine.step()
    assert isinstance(output.error, RequestAborted)
    assert engine.step() == []

"""Sounds out of the engine: alone, and with clips."""

from dataclasses import replace

import numpy as np
import pytest

from diffuserve.domain.errors import InvalidParams, ModelNotCapable, NumericalFailure
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.frames import Media, Sound
from diffuserve.parallel.messages import pack, unpack
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC, FakePipeline
from support.clip_engine import SPEC, clip, drain

CLIPS_WITH_SOUND = replace(SPEC, sample_rate=16_000, fps=8)


def rain(**values: object) -> GenerationParams:
    return GenerationParams.from_dict({"prompt": "rain", "seed": 1, **values})


def as_bytes(sound: Sound) -> bytes:
    return sound.samples.tobytes()


def test_a_sound_has_the_requested_length_and_its_prompts_tones() -> None:
    with Engine(FakePipeline(spec=FAKE_SOUND_SPEC)) as engine:
        default, long, other = engine.generate(
            [rain(num_images=2), rain(seconds=2.5), rain(seconds=2.5, prompt="wind")]
        )
    assert [(sound.num_channels, sound.seconds) for sound in default.sounds] == [(2, 0.5)] * 2
    assert (long.sounds[0].seconds, long.params.seconds, default.params.seconds) == (2.5, 2.5, 0.5)
    assert (long.frames, long.images, long.params.width, long.params.num_frames) == ([], [], None, None)
    assert as_bytes(long.sounds[0]) != as_bytes(other.sounds[0])


def test_sounds_are_the_same_alone_and_beside_others() -> None:
    with Engine(FakePipeline(spec=FAKE_SOUND_SPEC)) as engine:
        alone = engine.generate(rain(seconds=1.0))
        _, beside, _ = engine.generate([rain(seconds=3.0), rain(seconds=1.0), rain(num_images=2)])
    np.testing.assert_allclose(beside.sounds[0].samples, alone.sounds[0].samples, atol=1e-3)


@pytest.mark.parametrize("stream_frames", [False, True])
def test_a_clips_sound_comes_with_its_first_frames(stream_frames: bool) -> None:
    with Engine(FakePipeline(spec=CLIPS_WITH_SOUND)) as engine:
        engine.add(clip(num_frames=9, num_images=2, fps=8), stream_frames=stream_frames)
        outputs = drain(engine)
    result, chunks = outputs[-1].result, [output.chunk for output in outputs if output.chunk]
    assert result is not None
    if stream_frames:
        assert result.media == []
        assert [chunk.start for chunk in chunks if chunk.sound is not None] == [0, 0]
        sounds = [chunk.sound for chunk in chunks if chunk.sound is not None]
    else:
        assert [len(media.frames) for media in result.media] == [9, 9]
        sounds = result.sounds
    assert [sound.seconds for sound in sounds] == [9 / 8] * 2


def test_a_model_of_sounds_refuses_what_only_pictures_have() -> None:
    resolve = FAKE_SOUND_SPEC.resolve
    with pytest.raises(ModelNotCapable, match=r"^seconds=11.0: fake-sound makes sounds of at most 10 s"):
        resolve(rain(seconds=11.0), seed=0)
    for name, value in (("width", 64), ("num_frames", 5)):
        with pytest.raises(ModelNotCapable, match=f"^{name}={value}: fake-sound makes sounds"):
            resolve(rain(**{name: value}), seed=0)
    with pytest.raises(ModelNotCapable, match=r"^seconds=1.0: fake-video generates single images"):
        replace(SPEC, max_frames=1).resolve(rain(seconds=1.0), seed=0)
    with pytest.raises(ModelNotCapable, match=r"^lyrics='la': fake-video does not sing"):
        SPEC.resolve(rain(lyrics="la"), seed=0)
    assert resolve(rain(lyrics="la"), seed=0).lyrics == "la"


def test_the_price_of_a_sound_grows_with_its_seconds() -> None:
    spec = FAKE_SOUND_SPEC
    short, long = (spec.workload(spec.resolve(rain(seconds=seconds), seed=0)) for seconds in (1.0, 4.0))
    assert (short.sequence_tokens, long.sequence_tokens) == (10, 40)
    assert (short.num_pixels, long.num_pixels) == (16_000, 64_000)


def test_what_does_not_fit_memory_names_the_seconds_that_do() -> None:
    config = EngineConfig(memory_budget_bytes=50 * 1024)
    pipeline = FakePipeline(spec=FAKE_SOUND_SPEC)
    with Engine(pipeline, config) as engine, pytest.raises(InvalidParams, match=r"10 s.*try seconds=5"):
        engine.add(rain(seconds=10.0, guidance_scale=1.0))


@pytest.mark.parametrize(
    ("shape", "rate", "told"),
    [
        ((3, 4), 16_000, "3 channels"),
        ((4,), 16_000, r"\(channels, samples\)"),
        ((1, 0), 16_000, "without samples"),
        ((1, 4), 4_000, "4000 Hz"),
        ((2, 4), 384_000, "384000 Hz"),
    ],
)
def test_a_sound_out_of_bounds_is_none(shape: tuple[int, ...], rate: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Sound(np.zeros(shape, np.float32), rate)


def test_samples_that_are_not_finite_fail_their_request_alone() -> None:
    class Broken(FakePipeline):
        def _sound(self, latents: object, seconds: float) -> Sound:
            return Sound(np.full((1, 4), np.nan if seconds == 2.0 else 0.0, np.float32), 16_000)

    with Engine(Broken(spec=FAKE_SOUND_SPEC)) as engine:
        broken, whole = engine.generate([rain(seconds=2.0), rain()], return_exceptions=True)
    assert isinstance(broken, NumericalFailure)
    assert not isinstance(whole, Exception)


def test_ranks_send_one_another_sounds() -> None:
    sound = Sound(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), 48_000)
    [[media]] = unpack(pack([[Media(sound=sound)]]))
    assert isinstance(media, Media)
    assert media.sound is not None
    assert (as_bytes(media.sound), media.sound.sample_rate) == (as_bytes(sound), 48_000)

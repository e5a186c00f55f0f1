"""Files of sounds, the sound of clips, and its picture."""

import wave
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from diffuserve.media.sound_file import SOUND_FORMATS
from diffuserve.media.sound_writer import read_sound, save_sound
from diffuserve.media.video_writer import read_clip_parameters, read_frames, save_video
from diffuserve.media.waveform import waveform
from diffuserve.models.frames import Sound
from support.sounds import HZ, tone


def pitch_of(sound: Sound) -> float:
    """Return the loudest frequency of the first channel."""
    spectrum = np.abs(np.fft.rfft(sound.samples[0]))
    return float(np.fft.rfftfreq(sound.num_samples, 1 / sound.sample_rate)[int(spectrum.argmax())])


@pytest.mark.parametrize("name", SOUND_FORMATS)
@pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (16_000, 1), (192_000, 2)])
def test_a_file_has_every_sample_to_16_bits(tmp_path: Path, name: str, rate: int, channels: int) -> None:
    sound, path = tone(rate=rate, channels=channels), tmp_path / f"a.{name}"
    save_sound(sound, path, {"prompt": "a tone ♪"})
    written = read_sound(path)
    assert (written.sample_rate, written.samples.shape) == (rate, sound.samples.shape)
    assert np.abs(written.samples - sound.samples).max() <= 1.0 / 32_000
    assert read_clip_parameters(path) == {"prompt": "a tone ♪"}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_wav_is_one_for_everybody_and_carries_nothing_unless_asked(tmp_path: Path) -> None:
    save_sound(tone(seconds=0.5), tmp_path / "a.wav", {})
    with wave.open(str(tmp_path / "a.wav")) as file:
        facts = (file.getnchannels(), file.getframerate(), file.getsampwidth(), file.getnframes())
    assert facts == (2, 44_100, 2, 22_050)
    assert read_clip_parameters(tmp_path / "a.wav") == {}


def test_equal_sounds_have_equal_files_and_loud_ones_are_clipped(tmp_path: Path) -> None:
    for name in SOUND_FORMATS:
        first, second = tmp_path / f"a.{name}", tmp_path / f"b.{name}"
        for path in (first, second):
            save_sound(tone(seconds=0.2, loudness=3.0), path, {})
        assert first.read_bytes() == second.read_bytes()
        assert np.abs(read_sound(first).samples).max() == pytest.approx(1.0, abs=1e-3)


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (64, 64), (40 * number % 256, 0, 0)) for number in range(count)]


@pytest.mark.parametrize(("name", "rate", "written"), [("mp4", 16_000, 16_000), ("webm", 44_100, 48_000)])
def test_a_clip_has_its_sound_no_longer_than_itself(
    tmp_path: Path, name: str, rate: int, written: int
) -> None:
    path = tmp_path / f"a.{name}"
    save_video(frames(12), path, 8, {"prompt": "a"}, tone(seconds=5.0, rate=rate))
    sound = read_sound(path)
    assert len(list(read_frames(path))) == 12
    assert (sound.sample_rate, sound.num_channels) == (written, 2)
    assert sound.seconds == pytest.approx(1.5, abs=0.1)
    assert pitch_of(sound) == pytest.approx(HZ, abs=3)
    assert read_clip_parameters(path) == {"prompt": "a"}


def test_frames_and_sound_alternate_in_the_file(tmp_path: Path) -> None:
    save_video(frames(40), tmp_path / "a.mp4", 8, {}, tone(seconds=5.0))
    with av.open(str(tmp_path / "a.mp4")) as container:
        order = [packet.stream.type for packet in container.demux() if packet.size]
    turns = sum(earlier != later for earlier, later in pairwise(order))
    assert turns >= 4


@pytest.mark.parametrize("name", ["gif", "webp"])
def test_an_animation_has_no_sound(tmp_path: Path, name: str) -> None:
    save_video(frames(3), tmp_path / f"silent.{name}", 8)
    save_video(frames(3), tmp_path / f"sounding.{name}", 8, sound=tone())
    assert (tmp_path / f"silent.{name}").read_bytes() == (tmp_path / f"sounding.{name}").read_bytes()


def test_the_picture_of_a_sound_shows_where_it_is_loud() -> None:
    samples = tone(seconds=1.0).samples.copy()
    samples[:, samples.shape[1] // 2 :] *= 0.1
    picture = np.asarray(waveform(Sound(samples, 44_100)).convert("L")) < 200
    left, right = picture[:, :120].sum(), picture[:, 136:].sum()
    assert left > 3 * right > 0
    assert waveform(Sound(np.zeros((1, 1), np.float32), 8_000)).size == (256, 96)

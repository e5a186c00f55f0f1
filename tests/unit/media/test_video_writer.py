"""Clips that are encoded as their frames come."""

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Colorspace
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.media.video_writer import VideoWriter, read_clip_parameters, save_video

PARAMETERS = {"prompt": "ein roter Kreis über 🟦", "seed": 2**62, "num_frames": 17}
FPS = 16
SIZE = (96, 80)


def moving_square(num_frames: int, size: tuple[int, int] = SIZE) -> list[Image.Image]:
    """Return frames of a square that moves over a gradient."""
    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    background = np.stack([columns * 200 // size[0], rows * 200 // size[1], np.full_like(rows, 90)], -1)
    frames = []
    for number in range(num_frames):
        pixels = background.astype(np.uint8)
        left = number * (size[0] - 24) // num_frames
        pixels[16:40, left : left + 24] = (230, 220, 210)
        frames.append(Image.fromarray(pixels))
    return frames


def psnr(image: Image.Image, other: Image.Image) -> float:
    difference = np.asarray(image.convert("RGB"), float) - np.asarray(other.convert("RGB"), float)
    return 10 * math.log10(255**2 / max(float((difference**2).mean()), 1e-9))


def decoded(path: Path) -> Iterator[Image.Image]:
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            rgb = frame.reformat(format="rgb24", src_colorspace=Colorspace.ITU709)
            yield Image.fromarray(rgb.to_ndarray())


def boxes(content: bytes) -> list[str]:
    """Return the names of the outermost boxes of an MP4 file."""
    names, place = [], 0
    while place < len(content):
        names.append(content[place + 4 : place + 8].decode())
        place += int.from_bytes(content[place : place + 4])
    return names


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_a_clip_shows_its_frames_for_as_long_as_asked(name: str, tmp_path: Path) -> None:
    frames, path = moving_square(17), tmp_path / f"clip.{name}"
    save_video(frames, path, FPS, PARAMETERS)
    shown = list(decoded(path)) if name in ("mp4", "webm") else _pages(path)
    assert len(shown) == 17
    assert all(psnr(own, other) >= 30 for own, other in zip(shown, frames, strict=True))
    assert _seconds(path) == pytest.approx(17 / FPS, abs=0.01)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def _pages(path: Path) -> list[Image.Image]:
    with Image.open(path) as image:
        pages = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            pages.append(image.convert("RGB"))
        return pages


def _seconds(path: Path) -> float:
    if path.suffix in (".mp4", ".webm"):
        with av.open(str(path)) as container:
            assert container.duration is not None
            return container.duration / 1_000_000
    total = 0
    with Image.open(path) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            image.load()
            total += image.info["duration"]
    return total / 1000


@pytest.mark.parametrize("name", ["mp4", "webm"])
@pytest.mark.parametrize("fps", [1, 7, 24, 120])
def test_the_rate_is_exact_and_colors_are_those_of_screens(name: str, fps: int, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{name}"
    save_video(moving_square(5), path, fps)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert stream.average_rate == Fraction(fps)
        assert (context.pix_fmt, context.width, context.height) == ("yuv420p", *SIZE)
        assert (context.colorspace, context.color_primaries, context.color_trc) == (1, 1, 1)
        assert context.color_range == 1


def test_an_mp4_can_be_played_while_it_arrives(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    save_video(moving_square(17), path, FPS)
    names = boxes(path.read_bytes())
    assert names.index("moov") < names.index("mdat")


@pytest.mark.parametrize("name", VIDEO_FORMATS)
@pytest.mark.parametrize("prompt", ["ein roter Kreis über 🟦", "<b>&amp;</b> ]]> \"'\n\x07" * 300])
def test_every_format_carries_the_parameters(name: str, prompt: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{name}"
    save_video(moving_square(2), path, FPS, {**PARAMETERS, "prompt": prompt})
    assert read_clip_parameters(path) == {**PARAMETERS, "prompt": prompt}


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_without_parameters_a_file_names_none(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"clip.{name}"
    save_video(moving_square(2), path, FPS)
    assert read_clip_parameters(path) == {}


def test_other_files_carry_no_parameters(tmp_path: Path) -> None:
    for content in (b"no clip", b""):
        (tmp_path / "x.mp4").write_bytes(content)
        assert read_clip_parameters(tmp_path / "x.mp4") == {}
    assert read_clip_parameters(tmp_path / "missing.mp4") == {}


@pytest.mark.parametrize("name", ["mp4", "webm"])
def test_odd_sides_repeat_their_last_row_and_column(name: str, tmp_path: Path) -> None:
    frames, path = moving_square(3, (97, 71)), tmp_path / f"clip.{name}"
    save_video(frames, path, FPS)
    shown = list(decoded(path))
    assert {frame.size for frame in shown} == {(98, 72)}
    assert psnr(shown[0].crop((0, 0, 97, 71)), frames[0]) >= 30
    assert psnr(shown[0].crop((97, 0, 98, 71)), frames[0].crop((96, 0, 97, 71))) >= 30


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_a_clip_that_is_given_up_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError), VideoWriter(tmp_path / f"clip.{name}", FPS, {}) as writer:  # noqa: PT012
        writer.write(moving_square(2))
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_a_full_disk_is_an_error_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / f".clip.{name}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"(?i)no space left"):
        save_video(moving_square(40), tmp_path / f"clip.{name}", FPS)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "clip.mp4", FPS, {}) as writer:
        for frame in moving_square(5):
            writer.write([frame])
        assert not writer.path.exists()
    assert writer.num_frames == len(list(decoded(writer.path))) == 5


def test_a_clip_without_frames_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no frame"):
        save_video([], tmp_path / "clip.mp4", FPS)
    assert list(tmp_path.iterdir()) == []


def test_a_clip_that_grows_too_large_for_its_format_is_refused(tmp_path: Path) -> None:
    frame = Image.new("RGB", (2048, 2048))
    with pytest.raises(InvalidParams, match="small clips"):
        save_video([frame] * 5, tmp_path / "clip.gif", FPS)
    assert list(tmp_path.iterdir()) == []


def test_a_gif_is_in_time_even_where_its_clock_is_coarse(tmp_path: Path) -> None:
    path = tmp_path / "clip.gif"
    save_video(moving_square(48), path, 48)
    assert _seconds(path) == pytest.approx(1, abs=0.005)
    assert json.dumps(read_clip_parameters(path)) == "{}"

"""Clips on the command line: what asks for one, what is refused, and the files that are written."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import pytest
import typer

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.run import run_requests
from diffuserve.cli.images.clips import NO_CLIP, ClipOptions, check_file, kind_for, with_lengths
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.output import ImageWriter
from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.jobs.job import IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.media.video_writer import read_clip_parameters
from support.clips import CLIPS
from support.hand_worker import HAND_SPEC

BALL = GenerationParams(prompt="a ball")


@pytest.mark.parametrize(
    ("options", "output", "kind"),
    [
        (NO_CLIP, "ball.mp4", VIDEO_GENERATE),
        (NO_CLIP, "ball.GIF", VIDEO_GENERATE),
        (NO_CLIP, "ball.png", IMAGE_GENERATE),
        (NO_CLIP, "ball.webp", None),
        (NO_CLIP, "out", None),
        (ClipOptions(num_frames=17), "out", VIDEO_GENERATE),
        (ClipOptions(seconds=2.0), "ball.webm", VIDEO_GENERATE),
        (ClipOptions(fps=8), "ball.webp", VIDEO_GENERATE),
        (ClipOptions(num_frames=1), "out", IMAGE_GENERATE),
    ],
)
def test_options_and_the_files_name_tell_whether_a_clip_is_asked_for(
    options: ClipOptions, output: str, kind: str | None
) -> None:
    assert options.kind(Path(output)) == kind


@pytest.mark.parametrize(
    ("options", "output", "told"),
    [
        (ClipOptions(num_frames=17), "ball.png", "give one of .mp4, .webm, .gif, .webp"),
        (ClipOptions(num_frames=17, seconds=1.0), "ball.mp4", "not both"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: ClipOptions, output: str, told: str) -> None:
    with pytest.raises(typer.BadParameter, match=told):
        options.kind(Path(output))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_length_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidParams, match=r"^seconds="):
        ClipOptions(seconds=seconds).kind(None)


def test_a_model_of_images_names_what_to_do() -> None:
    with pytest.raises(ModelNotCapable, match=r"^frames=17: hand generates single images; give --model"):
        with_lengths([BALL], HAND_SPEC, VIDEO_GENERATE, ClipOptions(num_frames=17), Path("out"))
    with pytest.raises(ModelNotCapable, match=r"^output='ball.mp4': hand"):
        with_lengths([BALL], HAND_SPEC, VIDEO_GENERATE, NO_CLIP, Path("ball.mp4"))


def test_a_model_of_clips_makes_one_unless_an_image_is_asked_for() -> None:
    assert (kind_for(CLIPS, None), kind_for(HAND_SPEC, None)) == (VIDEO_GENERATE, IMAGE_GENERATE)
    short = replace(BALL, seconds=0.5)
    [clip] = with_lengths([short], CLIPS, VIDEO_GENERATE, ClipOptions(seconds=0.5), Path("out"))
    [image] = with_lengths([BALL], CLIPS, IMAGE_GENERATE, NO_CLIP, Path("out"))
    assert (clip.num_frames, image.num_frames) == (9, 1)


def test_clips_in_a_folder_are_of_the_default_format(tmp_path: Path) -> None:
    assert Destination.parse(tmp_path).of_kind(VIDEO_GENERATE).suffix == ".mp4"
    assert Destination.parse(tmp_path / "a.webm").of_kind(VIDEO_GENERATE).suffix == ".webm"
    with pytest.raises(typer.BadParameter, match=r"of clips \.mp4, \.webm, \.gif"):
        Destination.parse(tmp_path / "a.avi")


def test_a_file_that_cannot_hold_the_clip_is_refused() -> None:
    small = CLIPS.resolve(GenerationParams(prompt="a", width=32, height=32, num_frames=5), seed=0)
    check_file(small, Destination.parse(Path("a.mp4")))
    with pytest.raises(InvalidParams, match="take mp4"):
        check_file(small, Destination.parse(Path("a.webm")))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ImageWriter]:
    writer = ImageWriter(Destination.parse(tmp_path / "ball.mp4"), ImageOutput(None, "fake"), 3)
    yield writer
    writer.close()


def test_clips_are_written_as_they_are_decoded_beside_images(
    fake_engine: Engine, writer: ImageWriter, tmp_path: Path
) -> None:
    clip = GenerationParams(prompt="a ball", width=32, height=32, seed=5, num_images=2, num_frames=5)
    image = GenerationParams(prompt="a star", width=32, height=32, num_frames=5, seed=9)
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=False)
    run = run_requests(fake_engine, [clip, image], console, writer.save, writer.add_frames)
    assert run.errors == {}
    paths = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert paths == ["ball-1.mp4", "ball-2.mp4", "ball-3.mp4"]
    assert [len(writer.paths[index]) for index in (0, 1)] == [2, 1]
    for path, seed in zip(writer.paths[0], (5, 6), strict=True):
        with av.open(str(path)) as opened:
            frames = [(frame.width, frame.height) for frame in opened.decode(video=0)]
        assert frames == [(32, 32)] * 5
        assert read_clip_parameters(path)["seed"] == seed
    writer.close()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    sheet = writer.save_sheet(run.finished)
    assert sheet.is_file()

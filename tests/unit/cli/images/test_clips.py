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
from diffuserve.cli.images.clips import (
    NO_CLIP,
    ClipOptions,
    check_file,
    check_leaves,
    kind_for,
    with_lengths,
)
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.output import ImageWriter
from diffuserve.domain.errors import InvalidParams, ModelNotCapable, OutputBlocked
from diffuserve.domain.jobs.job import AUDIO_GENERATE, IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import Action
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.media.sound_writer import read_sound
from diffuserve.media.video_writer import read_clip_parameters, read_frames
from diffuserve.protocol.config import ImageOptions
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC, FAKE_SPEC, FakePipeline
from support.clips import CLIPS
from support.hand_worker import HAND_SPEC
from support.hosted_engine import ScriptedFilter

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
        (ClipOptions(seconds=2.0), "out", None),
        (ClipOptions(seconds=2.0), "rain.FLAC", AUDIO_GENERATE),
        (NO_CLIP, "rain.wav", AUDIO_GENERATE),
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
        (ClipOptions(seconds=1.0), "ball.png", "give one of .mp4, .webm, .gif, .webp"),
        (ClipOptions(fps=8), "rain.wav", "a sound has no frames"),
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


def test_a_model_of_sounds_makes_one_and_nothing_else() -> None:
    seconds = ClipOptions(seconds=2.0)
    assert kind_for(FAKE_SOUND_SPEC, None, seconds) == AUDIO_GENERATE
    assert kind_for(HAND_SPEC, None, seconds) == VIDEO_GENERATE
    [sound] = with_lengths(
        [replace(BALL, seconds=2.0)], FAKE_SOUND_SPEC, AUDIO_GENERATE, seconds, Path("out")
    )
    assert (sound.seconds, sound.num_frames) == (2.0, None)
    with pytest.raises(ModelNotCapable, match=r"fake-sound makes sounds; give -o with one of \.wav, \.flac"):
        with_lengths([BALL], FAKE_SOUND_SPEC, IMAGE_GENERATE, NO_CLIP, Path("ball.png"))
    with pytest.raises(ModelNotCapable, match="hand generates single images; give --model"):
        with_lengths([BALL], HAND_SPEC, AUDIO_GENERATE, NO_CLIP, Path("rain.wav"))


def test_a_sound_goes_to_a_file_that_can_hold_it() -> None:
    spec = replace(FAKE_SOUND_SPEC, sample_rate=48_000, max_seconds=900.0)
    long = spec.resolve(GenerationParams(prompt="rain", seconds=600.0), seed=0)
    check_file(AUDIO_GENERATE, spec, long, Destination.parse(Path("rain.flac")))
    for name, told in (("rain.wav", "take flac"), ("rain.webp", "is no sound")):
        with pytest.raises(InvalidParams, match=told):
            check_file(AUDIO_GENERATE, spec, long, Destination.parse(Path(name)))
    assert Destination.parse(Path("out")).of_kind(AUDIO_GENERATE).suffix == ".wav"


def test_a_sound_that_nothing_judges_leaves_only_if_that_is_allowed() -> None:
    with pytest.raises(InvalidParams, match=r"^allow_unjudged_audio=False: no sound leaves here"):
        check_leaves(AUDIO_GENERATE, ImageOptions())
    for images in (ImageOptions(allow_unjudged_audio=True), ImageOptions(image_filter="none")):
        check_leaves(AUDIO_GENERATE, images)
    check_leaves(VIDEO_GENERATE, ImageOptions())


def test_clips_in_a_folder_are_of_the_default_format(tmp_path: Path) -> None:
    assert Destination.parse(tmp_path).of_kind(VIDEO_GENERATE).suffix == ".mp4"
    assert Destination.parse(tmp_path / "a.webm").of_kind(VIDEO_GENERATE).suffix == ".webm"
    with pytest.raises(typer.BadParameter, match=r"of clips \.mp4, \.webm, \.gif"):
        Destination.parse(tmp_path / "a.avi")


def test_a_file_that_cannot_hold_the_clip_is_refused() -> None:
    small = CLIPS.resolve(GenerationParams(prompt="a", width=32, height=32, num_frames=5), seed=0)
    check_file(VIDEO_GENERATE, CLIPS, small, Destination.parse(Path("a.mp4")))
    with pytest.raises(InvalidParams, match="take mp4"):
        check_file(VIDEO_GENERATE, CLIPS, small, Destination.parse(Path("a.webm")))


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


def test_sounds_are_written_and_pictured_on_the_sheet(tmp_path: Path) -> None:
    rain = GenerationParams(prompt="rain", seed=5, num_images=2, seconds=0.25)
    writer = ImageWriter(Destination.parse(tmp_path / "rain.flac"), ImageOutput(None, "fake"), 2)
    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=False)
    with Engine(FakePipeline(spec=FAKE_SOUND_SPEC)) as engine:
        run = run_requests(engine, [rain], console, writer.save, writer.add_frames)
    assert run.errors == {}
    assert [path.name for path in writer.paths[0]] == ["rain-1.flac", "rain-2.flac"]
    assert [read_sound(path).seconds for path in writer.paths[0]] == [0.25, 0.25]
    assert read_clip_parameters(writer.paths[0][1])["seed"] == 6
    assert writer.save_sheet(run.finished).is_file()


def test_a_clip_that_comes_as_a_whole_is_written_with_its_sound(tmp_path: Path) -> None:
    camera = FakePipeline(spec=replace(FAKE_SPEC, sample_rate=16_000))
    writer = ImageWriter(Destination.parse(tmp_path / "storm.mp4"), ImageOutput(None, "fake"), 1)
    with Engine(camera) as engine:
        whole = engine.generate(GenerationParams(prompt="a storm", num_frames=9, fps=8, seed=1))
    writer.save(0, whole)
    writer.close()
    [path] = writer.paths[0]
    assert read_sound(path).seconds == pytest.approx(9 / 8, abs=0.1)
    assert len(list(read_frames(path))) == 9


def test_withheld_sounds_leave_no_file(tmp_path: Path) -> None:
    images = ImageOutput(ScriptedFilter(lambda _: Action.ALLOW), "fake")
    writer = ImageWriter(Destination.parse(tmp_path / "rain.wav"), images, 1)
    with Engine(FakePipeline(spec=FAKE_SOUND_SPEC)) as engine:
        result = engine.generate(GenerationParams(prompt="rain", seed=5))
    with pytest.raises(OutputBlocked, match="--allow-unjudged-audio"):
        writer.save(0, result)
    assert list(tmp_path.iterdir()) == []

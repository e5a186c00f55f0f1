"""Writing the images of finished requests, and the table of their timings."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from PIL.Image import Image, effect_noise

from diffuserve.cli.display.console import Console
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.output import ImageWriter, print_timings
from diffuserve.domain.errors import OutputBlocked
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.media.image_file import read_parameters

PLAIN = ImageOutput(None, "fake")


class Blocking:
    """An image filter that blocks every image."""

    info = FilterInfo("blocking", "1")

    def check(self, image: Image) -> Verdict:
        return Verdict((Finding("nsfw", Action.BLOCK, "blocking"),))


@pytest.fixture
def result(fake_engine: Engine) -> GenerationResult:
    params = GenerationParams(prompt="a red star", width=32, height=16, seed=5, num_images=2)
    return fake_engine.generate([params])[0]


def writer_of(output: Path, image_output: ImageOutput = PLAIN, num_images: int = 2) -> ImageWriter:
    return ImageWriter(Destination.parse(output), image_output, num_images)


def test_images_are_saved_with_their_parameters(result: GenerationResult, tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "out")
    writer.save(0, result)
    names = ["a-red-star-5.png", "a-red-star-6.png"]
    assert [path.name for path in writer.paths[0]] == names
    assert [read_parameters(path)["seed"] for path in writer.paths[0]] == [5, 6]


def test_images_of_a_named_file_are_numbered_over_all_requests(
    result: GenerationResult, tmp_path: Path
) -> None:
    writer = writer_of(tmp_path / "star.webp", num_images=4)
    writer.save(0, result)
    writer.save(1, result)
    names = [[path.name for path in paths] for paths in writer.paths.values()]
    assert names == [["star-1.webp", "star-2.webp"], ["star-3.webp", "star-4.webp"]]


def test_a_request_chooses_the_quality_of_its_files(result: GenerationResult, tmp_path: Path) -> None:
    noise = effect_noise((64, 64), 50).convert("RGB")
    noisy = replace(result, media=[replace(media, frames=[noise]) for media in result.media])
    sizes = []
    for quality in (5, None):
        chosen = replace(noisy, params=replace(result.params, output_quality=quality))
        PLAIN.write(chosen, tmp_path, "jpeg")
        writer_of(tmp_path / "star.jpeg").save(0, chosen)
        sizes.append([(tmp_path / name).stat().st_size for name in ("0.jpeg", "star-1.jpeg")])
    [low, usual] = sizes
    assert all(small < large for small, large in zip(low, usual, strict=True))


def test_files_without_metadata_are_named_alike(result: GenerationResult, tmp_path: Path) -> None:
    writer = writer_of(tmp_path, ImageOutput(None, "fake", has_metadata=False))
    writer.save(0, result)
    assert [path.name for path in writer.paths[0]] == ["a-red-star-5.png", "a-red-star-6.png"]
    assert not read_parameters(writer.paths[0][0])


def test_a_blocked_image_is_never_written(result: GenerationResult, tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "out", ImageOutput(Blocking(), "fake"))
    with pytest.raises(OutputBlocked, match="nsfw"):
        writer.save(0, result)
    assert list((tmp_path / "out").iterdir()) == []
    assert writer.paths == {}


@pytest.mark.parametrize(("output", "name"), [("out", "contact_sheet.png"), ("star.webp", "star-grid.png")])
def test_the_contact_sheet_is_beside_the_images(
    output: str, name: str, result: GenerationResult, tmp_path: Path
) -> None:
    path = writer_of(tmp_path / output).save_sheet([result])
    assert path.name == name
    assert path.is_file()


def test_timings_are_a_row_for_each_request(result: GenerationResult) -> None:
    screen = io.StringIO()
    print_timings(Console(file=screen, width=120), [result, result])
    heading, *rows = [line.split() for line in screen.getvalue().splitlines()]
    assert heading == ["prompt", "size", "steps", "queue", "encode", "denoise", "decode", "total"]
    assert [row[:5] for row in rows[:2]] == [["a", "red", "star", "32x16", "4"]] * 2
    assert rows[0][-1] == f"{result.timings.total_seconds:.2f}"

"""Download of the images of a job that succeeded."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image

from diffuserve.cli.draw.fetch import fetch_images
from diffuserve.cli.images.destination import Destination
from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import ArtifactResource, JobResource, ResultResource
from diffuserve.media.image_file import read_parameters, save_image
from diffuserve.sdk.async_client import AsyncClient
from support.resources import make_job

JOB = make_job(
    input={"prompt": "a [red] star", "width": 64, "height": 32, "num_inference_steps": 4},
    created_at="2026-01-02T12:00:00.000Z",
)


def image(parameters: dict[str, object]) -> bytes:
    file = Path("image.png")
    save_image(Image.new("RGB", (64, 32), "red"), file, parameters)
    return file.read_bytes()


def done(num_images: int) -> JobResource:
    artifacts = [
        ArtifactResource(
            name=f"{role}-{i}.png",
            content_type="image/png",
            size_bytes=1,
            sha256="",
            width=64,
            height=32,
            index=i,
            role=role,
            seed=5 + i,
            url=f"/{role}-{i}.png",
        )
        for role in ("thumbnail", "image")
        for i in reversed(range(num_images))
    ]
    return replace(
        JOB, status=JobStatus.SUCCEEDED, result=ResultResource(artifacts=tuple(artifacts), safety={})
    )


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("star.png", ["star-1.png", "star-2.png"]),
        ("star.webp", ["star-1.webp", "star-2.webp"]),
        (".", ["a-red-star-5.png", "a-red-star-6.png"]),
    ],
)
async def test_images_are_saved_in_the_place_and_the_format_of_the_output(
    output: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = [image({"prompt": "a red star", "seed": 5 + i}) for i in range(2)]
    Path("image.png").unlink()

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=images[int(request.url.params["index"])])

    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as client:
        paths = await fetch_images(client, done(2), Destination.parse(Path(output)))
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [read_parameters(path)["seed"] for path in paths] == [5, 6]
    with Image.open(paths[0]) as saved:
        assert saved.format == ("WEBP" if output.endswith("webp") else "PNG")


async def test_a_sound_is_saved_under_the_suffix_of_what_it_is(tmp_path: Path) -> None:
    [picture, sound] = done(1).result.artifacts  # type: ignore[union-attr]
    sound = replace(sound, role="audio", content_type="audio/wav", width=None, height=None)
    result = ResultResource(artifacts=(picture, sound), safety={})
    job = replace(JOB, status=JobStatus.SUCCEEDED, result=result)
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=b"RIFF, and samples"))
    async with AsyncClient("http://server", transport=transport) as client:
        [path] = await fetch_images(client, job, Destination.parse(tmp_path / "rain.flac"))
    assert (path.name, path.read_bytes()) == ("rain.wav", b"RIFF, and samples")


async def test_images_without_parameters_are_named_after_their_job(tmp_path: Path) -> None:
    file = tmp_path / "plain.png"
    save_image(Image.new("RGB", (64, 32), "red"), file, {})
    content = file.read_bytes()

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=content)

    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as client:
        [path] = await fetch_images(client, done(1), Destination.parse(tmp_path / "out"))
    assert path.name == "a-red-star-5.png"


@pytest.mark.parametrize("output", ["star.png", "out"])
async def test_a_server_chooses_no_file(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, work = tmp_path / "own.txt", tmp_path / "work"
    own.write_text("the user's")
    monkeypatch.chdir(tmp_path)
    content = image({"prompt": "../../own.txt", "seed": "/../../../own.txt"})
    job = done(1)
    assert job.result is not None
    hostile = [replace(each, name=str(own), seed=None) for each in job.result.artifacts]
    job = replace(job, input={"seed": "/../../own.txt"}, result=replace(job.result, artifacts=tuple(hostile)))
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=content))
    async with AsyncClient("http://server", transport=transport) as client:
        [path] = await fetch_images(client, job, Destination.parse(work / output))
    assert path.is_relative_to(work)
    assert path.read_bytes() == content
    assert own.read_text() == "the user's"
    assert [each for each in work.rglob("*") if each.is_file()] == [path]


async def test_a_failed_download_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    transport = httpx.MockTransport(lambda request: httpx.Response(404))
    async with AsyncClient("http://server", transport=transport) as client:
        with pytest.raises(DiffuserveError):
            await fetch_images(client, done(2), Destination.parse(folder))
    assert list(folder.iterdir()) == []

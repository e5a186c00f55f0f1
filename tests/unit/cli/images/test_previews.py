"""Previews of a job that is followed, and the viewer of finished images."""

import base64
import io
import sys
from pathlib import Path

import httpx
import pytest
from PIL import Image

from diffuserve.cli.client.watch import follow
from diffuserve.cli.display.console import Console
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.previews import Previews, preview_path
from diffuserve.cli.images.viewer import open_images
from diffuserve.client.codec import encode
from diffuserve.sdk.async_client import AsyncClient
from support.resources import make_event, make_job, server_sent

JOB = make_job(input={"prompt": "a star", "width": 64, "height": 32})


def preview_of(color: str, width: int = 8) -> str:
    """Return a small image as the server sends it."""
    file = io.BytesIO()
    Image.new("RGB", (width, 4), color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("output", "path"),
    [(None, "j1-preview.png"), ("a/star.webp", "a/star-preview.png"), ("folder", "folder/j1-preview.png")],
)
def test_previews_are_beside_the_output(output: str | None, path: str) -> None:
    destination = None if output is None else Destination.parse(Path(output))
    assert preview_path(destination, "j1") == Path(path)


def test_a_strip_of_frames_keeps_its_proportions(tmp_path: Path) -> None:
    clip = make_job(input={"prompt": "a star", "width": 64, "height": 32, "num_frames": 9})
    path = tmp_path / "clip-preview.png"
    Previews(clip, path, Console(file=io.StringIO())).show({"b64": preview_of("red", width=24)})
    with Image.open(path) as image:
        assert image.size == (192, 32)


async def test_each_preview_replaces_the_one_before(tmp_path: Path) -> None:
    stream = server_sent(
        make_event("running", 1),
        make_event("preview", index=0, b64=preview_of("red")),
        make_event("preview", index=1, image=0, b64=preview_of("blue")),
        make_event("preview", index=1, image=1, b64=preview_of("green")),
        make_event("succeeded", 2),
    )

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})
        return httpx.Response(200, content=encode(JOB))

    path, screen = tmp_path / "new" / "star-preview.png", io.StringIO()
    previews = Previews(JOB, path, Console(file=screen, width=500))
    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as client:
        await follow(client, JOB, lambda job: None, previews.show)
    with Image.open(path) as image:
        assert (image.size, image.getpixel((5, 5))) == ((64, 32), (0, 0, 255))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert screen.getvalue().splitlines() == [f"preview 1: {path}", f"preview 2: {path}"]


def viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> Path:
    """Put a viewer on the path that notes what it opens and ends with `code`; return its notes."""
    notes, program = tmp_path / "opened", tmp_path / ("open" if sys.platform == "darwin" else "xdg-open")
    program.write_text(f'#!/bin/sh\necho "$1" >> {notes}\necho noise >&2\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return notes


def test_every_image_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, screen = viewer(tmp_path, monkeypatch, 0), io.StringIO()
    open_images([Path("out/a.png"), Path("out/b.png")], Console(file=screen))
    assert (notes.read_text().split(), screen.getvalue()) == (["out/a.png", "out/b.png"], "")


def test_a_machine_without_a_viewer_says_where_the_image_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, screen = viewer(tmp_path, monkeypatch, 3), io.StringIO()
    open_images([Path("out/a.png"), Path("out/b.png")], Console(file=screen, width=500))
    assert notes.read_text().split() == ["out/a.png"]
    assert "no program to open out/a.png" in screen.getvalue()

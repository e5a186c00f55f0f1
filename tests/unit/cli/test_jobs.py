"""What the commands make of a server's answers."""

import io
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image
from rich.console import Console

from diffuserve.cli.demo import SCENES, TENANTS, FinishedJob, print_table, save_sheet, scenes
from diffuserve.cli.destination import Destination
from diffuserve.cli.fetch import fetch_images
from diffuserve.cli.watch import JobBars, advanced, follow, state_of
from diffuserve.client.codec import decode, encode
from diffuserve.client.jobs import Client
from diffuserve.domain.job import JobStatus, Phase
from diffuserve.domain.resources.job import (
    ArtifactResource,
    ErrorResource,
    JobResource,
    ProgressResource,
    QueueResource,
    ResultResource,
)
from diffuserve.media.image_file import read_parameters, save_image
from support.resources import make_event, make_job, server_sent

JOB = make_job(
    input={"prompt": "a [red] star", "width": 64, "height": 32, "num_inference_steps": 4},
    created_at="2026-01-02T12:00:00.000Z",
)


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (JOB, "queued"),
        (replace(JOB, queue=QueueResource(3, 4.2, 9.6)), "queued, 3 ahead, 4–10 s"),
        (replace(JOB, queue=QueueResource(0, 0.22, 0.61)), "queued, next, 0.2–0.6 s"),
        (replace(JOB, status=JobStatus.RUNNING), "running"),
        (replace(JOB, status=JobStatus.RUNNING, phase=Phase.ENCODE), "encode"),
        (
            replace(
                JOB,
                status=JobStatus.RUNNING,
                phase=Phase.DENOISE,
                progress=ProgressResource(step=3, total=8, fraction=0.375),
            ),
            "step 3/8",
        ),
        (replace(JOB, status=JobStatus.CANCELING, phase=Phase.DENOISE), "canceling"),
        (replace(JOB, status=JobStatus.FAILED), "failed"),
    ],
)
def test_a_job_is_described_in_a_few_words(job: JobResource, state: str) -> None:
    assert state_of(job) == state


def test_progress_takes_a_job_out_of_the_queue() -> None:
    queued = replace(JOB, queue=QueueResource(1, 1, 2))
    job = advanced(queued, {"phase": "denoise", "step": 1, "total": 4, "fraction": 0.25})
    assert (job.status, job.queue, job.progress) == (
        JobStatus.RUNNING,
        None,
        ProgressResource(step=1, total=4, fraction=0.25),
    )


def test_bars_show_prompts_as_they_are() -> None:
    screen = io.StringIO()
    with JobBars(Console(file=screen, width=120)) as bars:
        for status in (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED):
            bars.show(replace(JOB, status=status))
    assert "a [red] star" in screen.getvalue()
    assert "succeeded" in screen.getvalue()


async def test_following_shows_each_news_and_gives_the_end() -> None:
    final = replace(JOB, status=JobStatus.FAILED, error=ErrorResource("boom", "it broke", safety={}))
    stream = server_sent(
        make_event("queued", 1),
        make_event("progress", phase="denoise", step=2, total=4),
        make_event("failed", 2),
    )

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})
        return httpx.Response(200, content=encode(final))

    shown: list[str] = []
    async with Client("http://server", transport=httpx.MockTransport(handler)) as client:
        ended = await follow(client, JOB, lambda job: shown.append(state_of(job)))
    assert ended == final
    assert shown == ["queued", "step 2/4", "failed"]


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
async def test_images_are_saved_where_and_as_what_was_asked(
    output: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = [image({"prompt": "a red star", "seed": 5 + i}) for i in range(2)]
    Path("image.png").unlink()

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=images[int(request.url.params["index"])])

    async with Client("http://server", transport=httpx.MockTransport(handler)) as client:
        paths = await fetch_images(client, done(2), Destination.parse(Path(output)))
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [read_parameters(path)["seed"] for path in paths] == [5, 6]
    with Image.open(paths[0]) as saved:
        assert saved.format == ("WEBP" if output.endswith("webp") else "PNG")


def test_a_job_survives_its_json() -> None:
    job = replace(
        done(1),
        started_at="2026-01-02T12:00:00.000Z",
        progress=ProgressResource(step=4, total=4, fraction=1.0),
        phase=Phase.UPLOAD,
    )
    assert decode(JobResource, encode(job)) == job


def test_the_demo_has_a_dozen_jobs_of_mixed_sizes_and_steps_of_two_tenants() -> None:
    assert len(scenes()) == len(SCENES) == 12
    assert len({(scene.width, scene.height) for scene in scenes()}) >= 4
    assert len({scene.num_inference_steps for scene in scenes()}) >= 4
    assert len(set(TENANTS)) == 2


def test_the_demo_tells_how_long_each_job_waited_and_ran(tmp_path: Path) -> None:
    save_image(Image.new("RGB", (64, 32), "red"), tmp_path / "01.png", {})
    started, finished = "2026-01-02T12:00:01.500Z", "2026-01-02T12:00:04.000Z"
    ended = replace(JOB, status=JobStatus.SUCCEEDED, started_at=started, finished_at=finished)
    expired = replace(JOB, status=JobStatus.EXPIRED, finished_at=finished)
    screen = io.StringIO()
    drawn = [FinishedJob("studio", ended, tmp_path / "01.png"), FinishedJob("newsroom", expired, None)]
    print_table(Console(file=screen, width=120), drawn)
    rows = [line.split() for line in screen.getvalue().splitlines()]
    assert [word for word in rows[1] if "." in word] == ["1.50", "2.50", "4.00"]
    assert [word for word in rows[2] if "." in word] == ["4.00"]
    assert "studio" in rows[1]
    sheet = save_sheet(drawn, tmp_path)
    assert sheet == tmp_path / "contact_sheet.png"
    assert sheet.stat().st_size > 0

"""The scenes of the demo and the report on its jobs."""

import io
from dataclasses import replace
from pathlib import Path

from PIL import Image

from diffuserve.cli.display.console import Console
from diffuserve.cli.servers.demo import TENANTS, FinishedJob, print_pages, print_table, save_sheet
from diffuserve.cli.servers.demo_scenes import SCENES
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import ErrorResource
from diffuserve.media.image_file import save_image
from diffuserve.models.bundled import bundled_adapters
from support.resources import make_job

JOB = make_job(
    input={"prompt": "a [red] star", "width": 64, "height": 32, "num_inference_steps": 4},
    created_at="2026-01-02T12:00:00.000Z",
)


def test_two_tenants_submit_jobs_of_mixed_sizes_and_steps() -> None:
    scenes = SCENES["tiny-flux"]
    assert len(scenes) == 14
    assert len({(scene.width, scene.height) for scene in scenes}) >= 4
    assert len({scene.num_inference_steps for scene in scenes}) >= 4
    assert len(set(TENANTS)) == 2


def test_an_edit_starts_from_the_image_of_a_scene_before_it(tmp_path: Path) -> None:
    numbered = list(enumerate(scene for scenes in SCENES.values() for scene in scenes))
    edits = [(number, scene) for number, scene in numbered if scene.edits is not None]
    assert edits
    for number, scene in edits:
        assert scene.edits is not None
        assert scene.edits < number
        params = scene.params(number, {scene.edits: tmp_path / "before.png"})
        assert params.image == str(tmp_path / "before.png")


def test_one_prompt_is_drawn_without_an_adapter_and_with_one_that_ships() -> None:
    without, with_it = (scene.params(number, {}) for number, scene in enumerate(SCENES["tiny-flux"][-2:], 12))
    assert (without.prompt, without.seed) == (with_it.prompt, with_it.seed)
    assert [use.name for use in with_it.adapters or ()] == [*bundled_adapters()["tiny-flux"]]
    assert without.adapters is None


def test_two_clips_are_drawn_one_of_them_from_an_image_of_another_model() -> None:
    params = [scene.params(17, {6: Path("07.png")}) for scene in SCENES["tiny-video"]]
    assert [scene.kind for scene in SCENES["tiny-video"]] == ["video.generate"] * 2
    assert [clip.image for clip in params] == [None, "07.png"]
    assert all(clip.width is None for clip in params)


def test_the_report_shows_how_long_each_job_waited_and_ran(tmp_path: Path) -> None:
    save_image(Image.new("RGB", (64, 32), "red"), tmp_path / "01.png", {})
    started, finished = "2026-01-02T12:00:01.500Z", "2026-01-02T12:00:04.000Z"
    ended = replace(JOB, status=JobStatus.SUCCEEDED, started_at=started, finished_at=finished)
    expired = replace(JOB, status=JobStatus.EXPIRED, finished_at=finished)
    screen = io.StringIO()
    finished_jobs = [
        FinishedJob(0, "studio", ended, tmp_path / "01.png"),
        FinishedJob(1, "newsroom", expired, None),
    ]
    print_table(Console(file=screen, width=120), finished_jobs)
    rows = [line.split() for line in screen.getvalue().splitlines()]
    assert [word for word in rows[1] if "." in word] == ["1.50", "2.50", "4.00"]
    assert [word for word in rows[2] if "." in word] == ["4.00"]
    assert "studio" in rows[1]
    sheet = save_sheet(finished_jobs, tmp_path)
    assert sheet == tmp_path / "contact_sheet.png"
    assert sheet.stat().st_size > 0


def test_the_report_names_the_jobs_that_failed() -> None:
    error = ErrorResource("boom", "it broke", safety={})
    failed = replace(JOB, status=JobStatus.FAILED, error=error)
    screen = io.StringIO()
    print_table(Console(file=screen, width=120), [FinishedJob(0, "studio", failed, None)])
    assert screen.getvalue().splitlines()[-1] == "'a [red] star' failed: it broke"


def test_the_demo_ends_with_the_pages_of_its_jobs(tmp_path: Path) -> None:
    screen = io.StringIO()
    job = replace(JOB, status=JobStatus.SUCCEEDED)
    print_pages(Console(file=screen, width=40), [FinishedJob(0, "studio", job, None)], tmp_path)
    told = screen.getvalue()
    assert f"diffuserve serve --no-auth --data-dir {tmp_path}" in told.replace("\n", "")
    assert f"http://127.0.0.1:8000/gallery/{job.id}  a [red] star" in told

"""`diffuserve submit` against a real server."""

import json
from pathlib import Path

import pytest
from PIL import Image

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.models.tiers import Tiers
from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread


def test_submit_prints_the_id_of_the_job(invoke: Invoke, server: ServerThread) -> None:
    done = invoke("submit", "a star", "--size", "64x32", "--steps", "3", "--seed", "7")
    assert (done.code, done.err) == (0, "")
    job = server.call(server.store.jobs.get(done.out))
    assert job.input["prompt"] == "a star"
    assert (job.input["width"], job.input["height"]) == (64, 32)
    assert (job.input["num_inference_steps"], job.input["seed"]) == (3, 7)


def test_width_and_height_may_be_given_apart(invoke: Invoke, server: ServerThread) -> None:
    done = invoke("submit", "a star", "--width", "32", "--height", "48", "--priority", "batch")
    job = server.call(server.store.jobs.get(done.out))
    assert (job.input["width"], job.input["height"]) == (32, 48)
    assert job.band == "batch"


def test_json_is_the_job_as_the_api_returns_it(invoke: Invoke) -> None:
    job = json.loads(invoke("submit", "a star", "--json").out)
    assert job["kind"] == "image.generate"
    assert job["input"]["prompt"] == "a star"


def test_waiting_ends_with_the_finished_job(invoke: Invoke) -> None:
    done = invoke("submit", "a star", "--wait", "--json")
    assert done.code == 0
    assert json.loads(done.out)["status"] == "succeeded"


@pytest.mark.parametrize(("name", "kind"), [("star.png", "PNG"), ("star.webp", "WEBP"), ("star.jpg", "JPEG")])
def test_images_are_saved_in_the_format_of_the_file_name(name: str, kind: str, invoke: Invoke) -> None:
    done = invoke("submit", "a star", "-o", name)
    assert (done.code, done.out) == (0, name)
    with Image.open(name) as image:
        assert (image.format, image.size) == (kind, (1, 1))


def test_images_in_a_folder_are_named_after_prompt_and_seed(invoke: Invoke) -> None:
    done = invoke("submit", "a blue star", "--seed", "5", "--num-images", "2", "-o", "out")
    assert [Path(line).name for line in done.out.splitlines()] == ["a-blue-star-5.png", "a-blue-star-6.png"]
    assert all(Path(line).is_file() for line in done.out.splitlines())


def test_a_failed_job_is_reported_with_its_error(invoke: Invoke) -> None:
    done = invoke("submit", "fail", "-o", "never.png")
    assert done.code == 1
    assert "failed: the engine says broken (broken)" in done.err
    assert not Path("never.png").exists()


def test_ctrl_c_while_waiting_leaves_the_job_running(
    invoke: Invoke, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diffuserve.cli.client.watch.follow", interrupted)
    done = invoke("submit", "wait", "--wait")
    assert done.code == 130
    [job_id] = [word.strip("`") for word in done.err.split() if word.startswith("job_")][:1]
    assert f"`diffuserve jobs cancel {job_id}` cancels it" in " ".join(done.err.split())
    assert not server.call(server.store.jobs.get(job_id)).status.is_final
    assert invoke("jobs", "cancel", job_id).code == 0


def test_an_unknown_model_is_refused_by_the_server(invoke: Invoke) -> None:
    done = invoke("submit", "a star", "--model", "nix")
    assert done.code == 2
    assert "nix" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_known_model_that_is_not_served_is_refused_as_it_was_typed_with_what_serves_it(
    invoke: Invoke,
) -> None:
    done = invoke("submit", "a star", "--model", "sd-1.5")
    assert done.code == 2
    assert "'sd-1.5' is not served" in done.err
    assert "`diffuserve serve --model sd-1.5`" in done.err


def test_progress_is_shown_while_waiting(invoke: Invoke) -> None:
    done = invoke("submit", "a star", "--wait")
    assert JobStatus.SUCCEEDED in done.err
    assert "a star" in done.err


def test_values_that_the_server_does_not_allow_are_replaced_and_told(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = {"hand": Tiers(steps=(4, 8), sizes=("64x64",))}
    settings = Settings.with_options(data_dir=tmp_path / "tiers", port=0, prompt_filter="none", tiers=tiers)
    with ServerThread(settings) as limited:
        monkeypatch.setenv("DIFFUSERVE_SERVER", limited.address)
        done = invoke("submit", "a star", "--steps", "7", "--size", "64x60")
        job = limited.call(limited.store.jobs.get(done.out))
    assert (job.input["num_inference_steps"], job.input["height"]) == (8, 64)
    assert "num_inference_steps is 8, the nearest that this server allows to 7" in done.err
    assert "height is 64, the nearest that this server allows to 60" in done.err

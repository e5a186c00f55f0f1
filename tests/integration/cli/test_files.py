"""`diffuserve files`, and `diffuserve submit` with images, against a real server."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.workers.worker import ModelOffer, Registration, WorkerReport, WorkerState
from diffuserve.settings import Settings
from support.command import Invoke
from support.hand_worker import HAND_SPEC
from support.server_thread import ServerThread

ABLE: dict[str, Any] = {
    "max_input_images": 2,
    "has_mask": True,
    "has_strength": True,
    "has_control_image": True,
    "has_negative_prompt": True,
}
PAINTER = replace(HAND_SPEC, name="painter", samplers=("euler", "ddim"), **ABLE)
FILE_ID = re.compile(r"file-[0-9a-f]{26}")


@pytest.fixture(autouse=True)
def images(tmp_path: Path) -> None:
    """Images in the working folder: `a.png`, `b.jpg` and `mask.png`."""
    Image.new("RGB", (64, 48), (1, 2, 3)).save(tmp_path / "a.png")
    Image.new("RGB", (64, 48), (200, 2, 3)).save(tmp_path / "b.jpg")
    Image.new("L", (64, 48), 255).save(tmp_path / "mask.png")
    (tmp_path / "notes.txt").write_text("no image")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server with two models, one of which takes images; nobody runs its jobs."""
    folder = tmp_path_factory.mktemp("server")
    settings = Settings.with_options(data_dir=folder, port=0, prompt_filter="none", image_filter="none")
    models = tuple(ModelOffer(spec=spec) for spec in (HAND_SPEC, PAINTER))
    registration = Registration(models=models, report=WorkerReport(state=WorkerState.READY))
    with ServerThread(settings, has_worker=False) as server:
        server.call(server.store.leases.register(registration))
        yield server


def job_input(server: ServerThread, job_id: str) -> dict[str, Any]:
    """Return the input of a job, which is then canceled."""
    job = server.call(server.store.jobs.get(job_id))
    assert server.call(server.store.jobs.cancel(job_id)).status is JobStatus.CANCELED
    return dict(job.input)


def test_files_are_uploaded_listed_shown_and_deleted(invoke: Invoke) -> None:
    uploaded = invoke("files", "upload", "a.png", "b.jpg")
    assert (uploaded.code, uploaded.err) == (0, "")
    first, second = uploaded.out.split()
    assert FILE_ID.fullmatch(first)
    listed = invoke("files", "list").out
    assert listed.index(second) < listed.index(first), "newest first"
    assert "64x48" in listed
    assert "a.png" in listed
    shown = json.loads(invoke("files", "show", first, "--json").out)
    assert (shown["id"], shown["filename"], shown["width"]) == (first, "a.png", 64)
    assert shown["sha256"] in invoke("files", "show", first).out
    assert invoke("files", "upload", "a.png").out == first, "the same image is the same file"
    assert invoke("files", "rm", first, second).out.split() == [first, second]
    gone = invoke("files", "show", first)
    assert gone.code == 2
    assert first in gone.err


def test_json_of_an_upload_is_a_page_of_files(invoke: Invoke) -> None:
    page = json.loads(invoke("files", "upload", "a.png", "--json").out)
    assert [file["filename"] for file in page["data"]] == ["a.png"]


@pytest.mark.parametrize("path", ["missing.png", "notes.txt"])
def test_what_is_no_image_is_refused_before_anything_is_sent(invoke: Invoke, path: str) -> None:
    before = invoke("files", "list", "--json").out
    for command in (("files", "upload", "a.png", path), ("submit", "a star", "--image", path)):
        done = invoke(*command)
        assert (done.code, done.out) == (2, "")
        assert f"image='{path}'" in done.err
    assert invoke("files", "list", "--json").out == before


def test_submit_uploads_images_and_names_their_ids(invoke: Invoke, server: ServerThread) -> None:
    options = ("--mask", "mask.png", "--strength", "0.6", "--negative-prompt", "blue", "--sampler", "ddim")
    done = invoke("submit", "a star", "--model", "painter", "--image", "a.png", "--image", "b.jpg", *options)
    assert done.code == 0, done.err
    values = job_input(server, done.out)
    assert [FILE_ID.fullmatch(image["id"]) is not None for image in values["image"]] == [True, True]
    assert values["mask"]["mode"] == "L"
    assert (values["width"], values["height"]) == (64, 48), "those of the image"
    assert (values["strength"], values["negative_prompt"], values["sampler"]) == (0.6, "blue", "ddim")


def test_submit_uploads_what_guides_an_image(invoke: Invoke, server: ServerThread) -> None:
    options = ("--control-image", "a.png", "--control-scale", "0.5")
    done = invoke("submit", "a star", "--model", "painter", *options)
    assert done.code == 0, done.err
    values = job_input(server, done.out)
    assert FILE_ID.fullmatch(values["control_image"]["id"])
    assert (values["control_scale"], values["width"]) == (0.5, 64)
    refused = invoke("submit", "a star", "--model", "painter", "--control-image", "notes.txt")
    assert (refused.code, "control_image='notes.txt'" in refused.err) == (2, True)


def test_an_image_that_is_named_twice_is_uploaded_once(invoke: Invoke, server: ServerThread) -> None:
    done = invoke("submit", "a star", "--model", "painter", "--image", "a.png", "--mask", "a.png")
    values = job_input(server, done.out)
    assert values["image"]["id"] == values["mask"]["id"]


def test_the_id_of_a_file_goes_to_the_server_as_it_is(invoke: Invoke, server: ServerThread) -> None:
    file_id = invoke("files", "upload", "a.png").out
    done = invoke("submit", "a star", "--model", "painter", "--image", file_id)
    assert job_input(server, done.out)["image"]["id"] == file_id


def test_a_jobs_images_are_shown_by_their_ids(invoke: Invoke, server: ServerThread) -> None:
    file_id = invoke("files", "upload", "a.png").out
    job_id = invoke("submit", "a star", "--model", "painter", "--image", file_id).out
    shown = invoke("jobs", "show", job_id).out
    assert f"image {file_id}," in shown
    assert "{" not in shown
    in_use = invoke("files", "rm", file_id)
    assert in_use.code != 0
    assert job_id in in_use.err, "a job needs it"
    job_input(server, job_id)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", "hand", "--image", "a.png"), "hand takes no image"),
        (("--model", "painter", "--sampler", "unipc"), "it has euler, ddim"),
        (("--sampler", "unipcc"), "did you mean 'unipc'?"),
        (("--strength", "0.5"), "needs an image to start from"),
        (("--model", "painter", "--image", "file-" + 26 * "0"), "is no file of yours"),
        (("--model", "painter", "--image", "http://example.com/a.png"), "must be an https URL"),
    ],
)
def test_what_the_server_or_the_model_cannot_do_is_refused(
    invoke: Invoke, arguments: tuple[str, ...], told: str
) -> None:
    done = invoke("submit", "a star", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err

"""Parameters of jobs with the pixels of the files that the agent has fetched."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.engine_process.job_input import job_params
from diffuserve.protocol.messages import AddJob, decode, encode

NAMED = {"id": "file-1", "width": 4, "height": 2, "mode": "RGB"}


def job(folder: Path, **values: Any) -> AddJob:
    """Return a job as it arrives over the socket; its file is an image of two by four red pixels."""
    path = folder / "input-0"
    if not path.exists():
        Image.new("RGB", (4, 2), (255, 0, 0)).save(path, "PNG")
    added = AddJob(
        attempt="j-1", input={"prompt": "a star", **values}, folder=str(folder), files={"file-1": str(path)}
    )
    received = decode(encode(added))
    assert isinstance(received, AddJob)
    return received


def test_images_have_the_pixels_of_their_files_and_keep_their_ids(tmp_path: Path) -> None:
    params = job_params(job(tmp_path, image=NAMED, mask={**NAMED, "mode": "L"}))
    image, mask = params.image, params.mask
    assert isinstance(image, InputImage)
    assert isinstance(mask, InputImage)
    assert (image.id, image.pixels) == ("file-1", b"\xff\0\0" * 8)
    assert (mask.id, mask.mode, len(mask.pixels or b"")) == ("file-1", "L", 8)
    assert params.to_dict() == {"prompt": "a star", "image": NAMED, "mask": {**NAMED, "mode": "L"}} | {
        "num_images": 1,
    }


def test_several_images_stay_several(tmp_path: Path) -> None:
    params = job_params(job(tmp_path, image=[NAMED, NAMED]))
    assert [image.id for image in params.images if isinstance(image, InputImage)] == ["file-1", "file-1"]
    assert params.to_dict()["image"] == [NAMED, NAMED]


def test_a_job_without_images_is_read_as_it_is(tmp_path: Path) -> None:
    assert job_params(job(tmp_path)).images == ()


def test_messages_name_files_by_their_ids_and_never_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "input-0").write_bytes(b"no image")
    with pytest.raises(InvalidParams, match="image='file-1': is no image") as broken:
        job_params(job(tmp_path, image=NAMED))
    assert str(tmp_path) not in str(broken.value)
    gone = job(tmp_path, image=NAMED)
    (tmp_path / "input-0").unlink()
    with pytest.raises(RuntimeError, match=r"^image: the file of file-1 is not here$"):
        job_params(gone)

"""A program gives fields by name, wherever the body of a job has them."""

import io
from pathlib import Path

import pytest

from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.client.local_images import local_images, with_ids
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.sdk.new_job import job_body


def test_no_field_of_a_request_has_the_name_of_one_of_a_job() -> None:
    assert FIELDS.keys() & NewJobBody.model_fields.keys() == set()


def test_fields_go_where_the_body_has_them() -> None:
    fields = {"seed": 7, "model": "tiny", "metadata": {"order": 1}, "priority": None, "width": None}
    body = job_body("a star", fields)
    assert body["input"] == {"prompt": "a star", "seed": 7, "num_images": 1}
    assert {name: body[name] for name in body if name != "input"} == {
        "model": "tiny",
        "metadata": {"order": 1},
    }
    NewJobBody.model_validate(body)


def test_fields_count_more_than_the_parameters_that_they_stand_beside() -> None:
    params = GenerationParams(prompt="a star", seed=1, width=64)
    assert job_body(params, {"seed": 2})["input"] == params.to_dict() | {"seed": 2}


def test_a_bad_value_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidParams, match="seed=-5"):
        job_body("a star", {"seed": -5})


def test_several_prompts_are_no_job() -> None:
    with pytest.raises(InvalidParams, match=r"client\.batches\.submit"):
        job_body(["a star", "a ring"], {})  # type: ignore[arg-type]


def test_the_name_of_a_local_file_is_no_image(tmp_path: Path) -> None:
    (path := tmp_path / "circle.png").write_bytes(b"a circle")
    with pytest.raises(InvalidParams, match=r'give Path\(".*circle.png"\)'):
        job_body("a star", {"image": str(path), "strength": 0.5})
    assert job_body("a star", {"image": "file-9", "strength": 0.5})["input"]["image"] == "file-9"


def test_local_images_are_named_by_their_ids() -> None:
    cat, dog, bird = Path("cat.png"), b"a dog", io.BytesIO(b"a bird")
    fields = {"image": [cat, "file-9"], "mask": dog, "controls": [{"image": bird}], "seed": 1}
    assert list(local_images(fields)) == [cat, dog, bird]
    assert with_ids(fields, {cat: "file-1", dog: "file-2", bird: "file-3"}) == {
        "image": ["file-1", "file-9"],
        "mask": "file-2",
        "controls": [{"image": "file-3"}],
        "seed": 1,
    }

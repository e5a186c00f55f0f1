"""Bodies of OpenAI's API take what they do not know, and name it."""

from typing import Any

import orjson
import pytest

from diffuserve.api.http.json_body import parsed_json
from diffuserve.api.openai.request_bodies import ImagesBody
from diffuserve.api.openai.tolerant_body import MAX_NAMED


def body(**values: Any) -> ImagesBody:
    return ImagesBody.model_validate({"prompt": "a cat"} | values)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("steps", "num_inference_steps"), ("num_images", "n"), ("sed", "seed"), ("sizes", "size")],
)
def test_a_slip_is_told_with_what_may_be_meant(name: str, meant: str) -> None:
    read = body(**{name: 4})
    assert (read.ignored, read.slips) == ((name,), (f"{name} was ignored; did you mean {meant}?",))


@pytest.mark.parametrize("name", ["style", "svg", "complexity", "unheard_of"])
def test_openais_own_fields_are_no_slips(name: str) -> None:
    assert (body(**{name: "x"}).ignored, body(**{name: "x"}).slips) == ((name,), ())


def test_what_says_nothing_is_not_ignored() -> None:
    assert body(style=None, moderation="auto", user="", quality="auto", n=None).ignored == ()


@pytest.mark.parametrize(
    ("values", "ignored"),
    [
        ({"output_compression": 50}, ("output_compression",)),
        ({"output_compression": 50, "output_format": "webp"}, ()),
        ({"partial_images": 2}, ("partial_images",)),
        ({"partial_images": 2, "stream": True}, ()),
        ({"quality": "hd", "num_inference_steps": 3}, ("quality",)),
        ({"frame_count": 4}, ("frame_count",)),
        ({"frame_count": 4, "output_format": "gif"}, ()),
    ],
)
def test_known_fields_are_ignored_where_they_mean_nothing(
    values: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    assert body(**values).ignored == ignored


def test_of_thousands_of_long_names_a_few_are_told_in_short() -> None:
    unknown = {f"{'field' * 100}{number}": 1 for number in range(5_000)}
    read = ImagesBody.model_validate(parsed_json(orjson.dumps({"prompt": "a"} | unknown), ImagesBody))
    assert len(read.model_extra or {}) <= MAX_NAMED
    assert max(map(len, read.ignored)) == 64

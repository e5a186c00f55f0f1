"""Our models inside Triton and TorchServe, with the bundled model and stand-ins for those servers' modules.

The servers themselves are in `tests/acceptance`.
"""

import asyncio
import io
import json
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidModel
from diffuserve.integrations.outputs import check_draws_images
from diffuserve.testing.fake_pipeline import FAKE_SPEC
from support.backend_modules import InferenceRequest, PredictionException, provide
from support.waiting import block_until

if TYPE_CHECKING:
    from diffuserve.integrations.torchserve.handler import DiffuserveHandler
    from diffuserve.integrations.triton.model import TritonPythonModel

CIRCLE = {"prompt": "a red circle on a white background", "width": 64, "height": 48, "steps": 2, "seed": 5}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, "steps=0: must be in 1…100"),
    ({"width": 7}, "width=7: tiny-flux generates"),
    ({"prompt": "explicit porn"}, "blocked by the policy"),
    ({"output_format": "gif"}, "give one of png, webp, jpeg"),
    ({"image": b"PNG"}, "is no image"),
]


@pytest.fixture(autouse=True, scope="module")
def _modules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        provide(patch)
        yield


@pytest.fixture(scope="module")
def triton() -> "Iterator[TritonPythonModel]":
    from diffuserve.integrations.triton.model import TritonPythonModel

    config = {"parameters": {"image_filter": {"string_value": "none"}}}
    model = TritonPythonModel()
    model.initialize(
        {"model_config": json.dumps(config), "model_name": "diffuserve", "model_instance_kind": "CPU"}
    )
    yield model
    model.finalize()


def answered(request: InferenceRequest) -> Any:
    block_until(lambda: bool(request.responses))
    [response] = request.responses
    return response.error or {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors}


def test_triton_requests_share_steps_and_their_inputs_are_read_at_once(triton: "TritonPythonModel") -> None:
    stats = triton._host.engine.stats
    before = (stats.num_steps, stats.num_request_steps)
    requests = [InferenceRequest.of(**{**CIRCLE, "width": 64 + 16 * n, "steps": 4 + n}) for n in range(4)]
    triton.execute(requests)
    for request in requests:
        request.tensors.clear()
    shapes = [answered(request)["images"].shape for request in requests]
    assert shapes == [(1, 48, 64 + 16 * n, 3) for n in range(4)]
    num_steps, num_request_steps = stats.num_steps - before[0], stats.num_request_steps - before[1]
    assert num_request_steps == 4 + 5 + 6 + 7
    assert num_steps < num_request_steps


def test_triton_returns_the_outputs_that_are_asked_for(triton: "TritonPythonModel") -> None:
    request = InferenceRequest.of(**CIRCLE, num_images=2, output_format="webp")
    triton.execute([request])
    outputs = answered(request)
    assert outputs["seeds"].tolist() == [5, 6]
    assert [Image.open(io.BytesIO(file)).format for file in outputs["files"]] == ["WEBP", "WEBP"]
    alone = InferenceRequest.of(**CIRCLE)
    alone.wanted = ("images",)
    triton.execute([alone])
    [image] = answered(alone)["images"]
    assert np.abs(np.int16(image) - outputs["images"][0]).max() <= 2


@pytest.mark.parametrize(("values", "words"), BAD)
def test_triton_answers_bad_requests_with_its_own_error(
    triton: "TritonPythonModel", values: dict[str, Any], words: str
) -> None:
    bad, good = InferenceRequest.of(**{**CIRCLE, **values}), InferenceRequest.of(**CIRCLE)
    triton.execute([bad, good])
    error = answered(bad)
    assert words in str(error)
    assert error.code == "INVALID_ARG"
    assert answered(good)["seeds"].tolist() == [5]


def test_triton_stops_the_request_of_a_client_that_has_gone(triton: "TritonPythonModel") -> None:
    request = InferenceRequest.of(**{**CIRCLE, "width": 512, "height": 512, "steps": 100})
    request.is_canceled = True
    triton.execute([request])
    assert answered(request).code == "CANCELLED"
    block_until(lambda: triton._host.engine.num_unfinished == 0)


@pytest.fixture
def torchserve(triton: "TritonPythonModel") -> "DiffuserveHandler":
    """Return the handler over the same engine; how it loads one, the real server shows."""
    from diffuserve.integrations.torchserve.handler import DiffuserveHandler

    handler = DiffuserveHandler()
    handler._host = triton._host
    return handler


async def test_torchserve_requests_come_as_json_and_share_steps(torchserve: "DiffuserveHandler") -> None:
    bodies: list[dict[str, Any]] = [{"body": CIRCLE}, {"body": json.dumps({**CIRCLE, "seed": 6}).encode()}]
    [[first], [second]] = await asyncio.gather(*(torchserve.handle([body], None) for body in bodies))
    assert (first["seeds"], second["seeds"]) == ([5], [6])
    assert Image.open(io.BytesIO(b64decode(first["images"][0]))).size == (64, 48)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *(({**CIRCLE, **values}, words) for values, words in BAD),
        (b"{", "must be JSON"),
        ([], "must be a JSON object"),
    ],
)
async def test_torchserve_answers_bad_requests_with_its_own_error(
    torchserve: "DiffuserveHandler", body: Any, words: str
) -> None:
    with pytest.raises(PredictionException) as refused:
        await torchserve.handle([{"body": body}], None)
    assert words in refused.value.message
    assert refused.value.error_code == 400


async def test_an_engine_that_holds_enough_refuses_more(torchserve: "DiffuserveHandler") -> None:
    torchserve._host = replace(torchserve._host, max_requests=0)
    with pytest.raises(PredictionException, match="try again later") as refused:
        await torchserve.handle([{"body": CIRCLE}], None)
    assert refused.value.error_code == 503


def test_models_of_clips_are_refused() -> None:
    with pytest.raises(InvalidModel, match="use diffuserve serve"):
        check_draws_images(FAKE_SPEC)

"""Our model inside a real Triton Inference Server, asked by Triton's own client over HTTP and gRPC."""

import base64
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from diffuserve.integrations.triton.repository import write_repository
from support.triton_server import TritonServer

pytestmark = pytest.mark.slow

CIRCLE = {"prompt": "a red circle on a white background", "width": 128, "height": 96, "steps": 4, "seed": 1}
MANY = 8
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-inside-triton.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("triton")
    write_repository(folder / "repository", "diffuserve", {}, None)
    with TritonServer(folder / "repository", folder) as running:
        assert running.is_ready(), running.log()[-5000:]
        yield running


def test_the_client_of_the_page_draws(server: TritonServer, tmp_path: Path) -> None:
    [code] = re.findall(r"^```python no-run\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    code = code.replace("127.0.0.1:8000", f"127.0.0.1:{server.http}")
    subprocess.run([server.python, "-c", code], cwd=tmp_path, check=True)
    with Image.open(tmp_path / "circle.png") as image:
        assert image.size == (128, 128)


def request(transport: str, *outputs: str, **values: Any) -> dict[str, Any]:
    wanted = {"outputs": outputs} if outputs else {}
    return {"transport": transport, "inputs": {**CIRCLE, **values}, **wanted}


def test_an_image_comes_as_pixels_and_as_a_file(server: TritonServer) -> None:
    by_http, by_grpc = server.ask([request("http"), request("grpc", output_format="jpeg")])
    for answer, file_format in ((by_http, "PNG"), (by_grpc, "JPEG")):
        assert answer["images"]["shape"] == [1, 96, 128, 3]
        assert (answer["seeds"], answer["warnings"]) == ([1], [])
        image = Image.open(io.BytesIO(base64.b64decode(answer["files"][0])))
        assert (image.format, image.size) == (file_format, (128, 96))
    assert by_http["images"]["mean"] == pytest.approx(by_grpc["images"]["mean"], abs=0.5)


def test_an_image_to_start_from_comes_as_a_file(server: TritonServer) -> None:
    [drawn] = server.ask([request("grpc", "files")])
    values = {"image": f"base64:{drawn['files'][0]}", "strength": 0.5, "num_images": 2}
    [answer] = server.ask([request("http", "images", "seeds", **values)])
    assert (answer["images"]["shape"], answer["seeds"]) == ([2, 96, 128, 3], [1, 2])


def test_mixed_requests_over_both_transports_share_steps(server: TritonServer) -> None:
    names = ("diffuserve_engine_steps_total", "diffuserve_request_steps_total")
    before = [server.metric(name) for name in names]
    mixed = [("http", "grpc")[n % 2] for n in range(MANY)]
    requests = [request(mixed[n], "images", width=64 + 16 * n, steps=16 + n, seed=n) for n in range(MANY)]
    answers = server.ask(requests)
    assert [answer["images"]["shape"][2] for answer in answers] == [64 + 16 * n for n in range(MANY)]
    num_steps, num_request_steps = (
        server.metric(name) - was for name, was in zip(names, before, strict=True)
    )
    assert num_request_steps == sum(16 + n for n in range(MANY))
    assert num_request_steps / num_steps > 2


@pytest.mark.parametrize(("transport", "status"), [("http", "400"), ("grpc", "StatusCode.INVALID_ARGUMENT")])
def test_bad_requests_get_tritons_error_with_our_remedy(
    server: TritonServer, transport: str, status: str
) -> None:
    bad: dict[str, dict[str, Any]] = {
        "steps=0: must be in 1…100": {"steps": 0},
        "prompt='  ': must not be empty; describe the image": {"prompt": "  "},
        "image='3 bytes': is no image; send PNG, JPEG, WEBP": {"image": "PNG"},
        "prompt=b'\\xff\\xfe\\xfd': must be UTF-8": {"prompt": "base64://79"},
        "unexpected inference input 'colour' for model 'diffuserve'": {"colour": "red"},
    }
    answers = server.ask([request(transport, **values) for values in bad.values()])
    assert [(answer["error"], answer["status"]) for answer in answers] == [(words, status) for words in bad]
    assert "images" in server.ask([request(transport)])[0]


def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    write_repository(tmp_path / "repository", "diffuserve", {"quantization": "int9"}, None)
    with TritonServer(tmp_path / "repository", tmp_path) as server:
        assert "quantization='int9': must be none, int8, fp8 or int4" in server.log()

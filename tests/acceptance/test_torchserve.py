"""Our model inside a real TorchServe."""

import base64
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from diffuserve.integrations.torchserve.archive import write_archive
from support.torchserve_server import TorchServe

pytestmark = pytest.mark.slow

CIRCLE = {"prompt": "a red circle on a white background", "width": 128, "height": 96, "steps": 4, "seed": 1}
MANY = 40
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-inside-torchserve.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    folder = tmp_path_factory.mktemp("torchserve")
    write_archive(folder / "store", "diffuserve", {})
    with TorchServe(folder / "store", folder) as running:
        yield running


def test_images_come_in_base64(server: TorchServe) -> None:
    status, answer = server.ask({**CIRCLE, "num_images": 2, "output_format": "webp"})
    assert status == 200
    assert (answer["seeds"], answer["output_format"], answer["warnings"]) == ([1, 2], "webp", [])
    images = [Image.open(io.BytesIO(base64.b64decode(file))) for file in answer["images"]]
    assert [(image.format, image.size) for image in images] == [("WEBP", (128, 96))] * 2


def test_the_command_of_the_page_draws(server: TorchServe, tmp_path: Path) -> None:
    [command] = re.findall(r"^curl .*?(?=^```$)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    command = command.replace("http://127.0.0.1:8080", server.url)
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, check=True)
    with Image.open(tmp_path / "circle.png") as image:
        assert image.size == (128, 128)


def test_mixed_requests_share_steps(server: TorchServe) -> None:
    """More at once than TorchServe's own batches hold: with `batchSize: 32` its frontend loses the worker."""
    bodies = [{**CIRCLE, "width": 64 + 16 * (n % 4), "steps": 8 + n % 8, "seed": n} for n in range(MANY)]
    answers = server.ask_at_once(bodies)
    assert [status for status, _ in answers] == [200] * MANY
    assert answers[-1][1]["requests_per_step"] > 2


def test_bad_requests_get_torchserves_error_with_our_remedy(server: TorchServe) -> None:
    bad = {
        "steps=0: must be in 1…100": {**CIRCLE, "steps": 0},
        "stepz=3: is no parameter; did you mean 'steps'?": {**CIRCLE, "stepz": 3},
        "names no image; give the base64 of its file": {**CIRCLE, "image": "/etc/hostname"},
        "must be a JSON object": [],
        "must be JSON such as": b"{",
    }
    for words, body in bad.items():
        status, answer = server.ask(body)
        assert status == 400
        assert words in answer["message"]
    assert server.ask(CIRCLE)[0] == 200

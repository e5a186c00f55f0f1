"""Qwen-Image-Layered in the engine: layers equal those of the bare pipeline, and keep their transparency."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.safety import FilterInfo, Verdict
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.media.image_file import read_parameters
from diffuserve.models.registry import read_spec
from support.tiny_pipelines import TINY_PIPELINES, bare_pipeline, tiny_folder
from support.tiny_pipelines.requests import TinyRequest

TINY = TINY_PIPELINES["qwen-image-layered"]
REQUESTS = {
    3: TinyRequest("a red star on blue", seed=7, steps=2, picture=1),
    1: TinyRequest("two stars", seed=8, steps=3, guidance=1.0, size=1, picture=2),
}
"""By their number of layers."""


class WatchingFilter:
    """Lets everything pass, and keeps what it has seen."""

    info = FilterInfo("watching", "1", {})

    def __init__(self) -> None:
        self.seen: list[Image.Image] = []

    def check(self, image: Image.Image) -> Verdict:
        self.seen.append(image)
        return Verdict()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("qwen-image-layered", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[int, GenerationResult]:
    """The results by their number of layers; a step has fewer tokens than one of the requests."""
    wanted = [request.params(TINY, num_images=count) for count, request in REQUESTS.items()]
    with Engine.load(folder, device="cpu", config=EngineConfig(num_threads=1, token_budget=100)) as engine:
        return dict(zip(REQUESTS, engine.generate(wanted), strict=True))


def bare_layers(folder: Path, request: TinyRequest, count: int) -> Any:
    call = request.bare_call(TINY) | {"layers": count, "resolution": 640}
    del call["width"], call["height"]
    return bare_pipeline(folder)(**call | {"image": call["image"].convert("RGBA")}).images[0]


@pytest.mark.slow
@pytest.mark.parametrize("count", REQUESTS)
def test_layers_are_those_of_the_bare_pipeline(
    folder: Path, results: dict[int, GenerationResult], count: int
) -> None:
    expected = bare_layers(folder, REQUESTS[count], count)
    made = np.stack([np.asarray(layer, np.float64) / 255 for layer in results[count].images])
    assert made.shape == expected.shape
    assert made.shape[0] == count
    assert np.abs(made - expected.clip(0, 1)).max() < 0.6 / 255, "equal but for rounding to eight bits"
    assert expected[..., 3].std() > 0.01, "alpha says something"
    assert not results[count].warnings


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_files_keep_transparency_one_seed_and_how_many_layers_there_are(
    results: dict[int, GenerationResult], suffix: str, tmp_path: Path
) -> None:
    image_filter = WatchingFilter()
    output = ImageOutput(image_filter, "layered", has_layers=True)
    shown = output.screened(results[3])
    assert len(image_filter.seen) == 3 * 3, "each layer on white, on black and without its transparency"
    assert {image.mode for image in image_filter.seen} == {"RGB"}
    *layers, _thumbnail = output.write(shown, tmp_path, suffix)
    assert [Path(layer.path).name for layer in layers] == [f"{index}.{suffix}" for index in range(3)]
    assert [layer.seed for layer in layers] == [7, 7, 7]
    for layer, image in zip(layers, results[3].images, strict=True):
        saved = Image.open(io.BytesIO(Path(layer.path).read_bytes()))
        assert saved.mode == "RGBA"
        assert np.array_equal(np.asarray(saved)[..., 3], np.asarray(image)[..., 3])
        origin = read_parameters(Path(layer.path))
        assert (origin["seed"], origin["num_images"]) == (7, 3)


def test_what_layers_cost_is_one_sequence_of_all_and_of_what_they_make_up(folder: Path) -> None:
    spec = read_spec(str(folder))
    assert (spec.has_layers, spec.width, spec.height, spec.size_multiple) == (True, 640, 640, 64)
    params = spec.resolve(REQUESTS[3].params(TINY, num_images=3), seed=0)
    workload = spec.workload(params)
    assert (workload.is_whole, workload.num_sequences) == (True, 2)
    assert workload.sequence_tokens == 512 + (3 + 1) * 100 + 100
    assert workload.num_pixels == 3 * 640 * 640


def test_no_settings_file_makes_layers_of_another_model(tmp_path: Path) -> None:
    folder = tiny_folder("sd3", tmp_path)
    (folder / "diffuserve.json").write_text('{"has_layers": true}', encoding="utf-8")
    with pytest.raises(InvalidModel, match="has_layers"):
        read_spec(str(folder))

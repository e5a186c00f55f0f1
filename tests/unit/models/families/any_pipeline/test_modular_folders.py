"""Folders of modular pipelines: their own index and blocks alone, and images as diffusers draws them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.registry import check_model
from support.foreign_folders import write_json
from support.tiny_pipelines import tiny_folder, tiny_pipeline

INDEX = "modular_model_index.json"
Changes = Mapping[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder whose index is as the hub has it: it names the repository that it was made in."""
    found = tiny_folder("z-image", tmp_path_factory.mktemp("modular"))
    plain = json.loads((found / "model_index.json").read_text())
    (found / "model_index.json").unlink()
    parts = {name: value for name, value in plain.items() if isinstance(value, list)}
    index = {"_class_name": "ZImageModularPipeline", "_blocks_class_name": "ZImageAutoBlocks"}
    write_json(found / INDEX, index | {name: [*pair, place(name, pair)] for name, pair in parts.items()})
    return found


def place(name: str, pair: list[str], repository: str = "nobody/z-image") -> dict[str, Any]:
    return {
        "pretrained_model_name_or_path": repository,
        "subfolder": name,
        "type_hint": pair,
        "revision": None,
    }


@pytest.fixture
def changed(folder: Path) -> Any:
    """Return a function that changes the index until the test is over."""
    before = (folder / INDEX).read_text()

    def change(changes: Changes) -> None:
        write_json(folder / INDEX, json.loads(before) | changes)

    yield change
    (folder / INDEX).write_text(before)


def test_requests_at_once_are_drawn_as_by_the_pipeline_alone(folder: Path) -> None:
    pipe = diffusers.ZImageModularPipeline()
    parts = tiny_pipeline("z-image").components
    pipe.update_components(**{name: part for name, part in parts.items() if name in pipe.components})
    engine = Engine.load(str(folder), device="cpu", dtype="float32")
    requests = [
        GenerationParams(prompt=prompt, width=64, height=64, num_inference_steps=steps, seed=steps)
        for prompt, steps in (("a red circle", 2), ("a blue square, far away", 3))
    ]
    for request, result in zip(requests, engine.generate(requests), strict=True):
        said = {name: getattr(request, name) for name in ("prompt", "width", "height", "num_inference_steps")}
        seed = torch.Generator().manual_seed(request.seed or 0)
        alone = pipe(**said, generator=seed, output_type="np", output="images")[0]
        assert np.abs(np.asarray(result.images[0]) - 255 * alone).max() <= 0.51


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_blocks_class_name": "MyBlocks"}, "run with its own blocks alone, ZImageAutoBlocks"),
        ({"_class_name": "MyModularPipeline"}, "'MyModularPipeline', which diffusers"),
        ({"vae": None}, "names no vae"),
        (
            {"vae": ["diffusers", "AutoencoderKL", place("vae_2", [], "a/b")]},
            "vae is the folder 'vae_2' of 'a/b'; put it into vae/ of this folder",
        ),
        ({"vae": ["my_vae", "MyVae", place("vae", [])]}, "only classes of diffusers and transformers"),
        ({"vae": [None, None, {"type_hint": ["my_vae", "MyVae"]}]}, "only classes of diffusers"),
        ({"vae": [None, None, {"type_hint": 7}]}, "must be a library and a class"),
    ],
)
def test_what_is_not_the_class_s_own_is_refused(
    folder: Path, changed: Callable[[Changes], None], changes: Changes, said: str
) -> None:
    changed(changes)
    with pytest.raises(InvalidModel) as caught:
        check_model(str(folder))
    assert said in str(caught.value)

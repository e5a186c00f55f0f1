"""Half-done images of what diffusers runs: in every layout of latents, and like what becomes of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.bundled import bundled_models
from diffuserve.models.families.any_pipeline import previews
from diffuserve.models.families.any_pipeline.family import ANY_PIPELINE
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.fake_pipeline import FakePipeline
from support.any_runs import load_tiny, request_of
from support.tiny_pipelines import TINY_PIPELINES

pytestmark = pytest.mark.filterwarnings("ignore")  # diffusers' own
CLIP = torch.randn(16, 3, 4, 6, generator=torch.Generator().manual_seed(0))
IMAGE = CLIP[:, :1]
SPEC = FakePipeline().spec
SIZE = GenerationParams(prompt="a star", width=48, height=32, num_frames=1)


def patches(image: Tensor) -> Tensor:
    return image.reshape(16, 2, 2, 3, 2).permute(1, 3, 0, 2, 4).reshape(1, 6, 64)


@pytest.mark.parametrize(
    ("latents", "expected"),
    [
        (IMAGE[None, :, 0], IMAGE),
        (CLIP[None], CLIP),
        (CLIP.transpose(0, 1)[None], CLIP),
        (patches(IMAGE[:, 0]), IMAGE),
        (IMAGE.flatten(1).T[None], IMAGE),
    ],
)
def test_latents_are_unpacked_from_images_clips_and_tokens(latents: Tensor, expected: Tensor) -> None:
    found = previews.unpacked(latents, 16, SPEC, SIZE)
    assert found is not None
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(1, 8, 4, 6), (1, 7, 64), (1, 24, 32), (1, 16), (1, 2, 8, 4, 6)])
def test_unknown_layouts_have_no_preview(shape: tuple[int, ...]) -> None:
    assert previews.unpacked(torch.zeros(shape), 16, SPEC, SIZE) is None


@pytest.fixture(params=["tiny-sd", "tiny-flux"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A bundled model, which is trained, as diffusers runs it: without what a family of ours reads alone."""
    source = bundled_models()[request.param]
    for part in source.iterdir():
        (tmp_path / part.name).symlink_to(part)
    settings = json.loads((source / "diffuserve.json").read_bytes())
    settings.pop("lowercase_prompt", None)
    (tmp_path / "diffuserve.json").unlink()
    (tmp_path / "diffuserve.json").write_text(json.dumps(settings))
    pipeline = ANY_PIPELINE.load(ModelFolder(tmp_path), LoadPlan(torch.device("cpu"), torch.float32))
    with Engine(pipeline, EngineConfig(token_budget=100_000)) as engine:
        yield engine


def correlation(preview: Image.Image, image: Image.Image) -> float:
    small = image.resize(preview.size, Image.Resampling.BOX)
    left, right = (np.asarray(each, np.float64).ravel() for each in (preview, small))
    return float(np.corrcoef(left, right)[0, 1])


def test_previews_are_of_the_image_that_they_become(real: Engine) -> None:
    assert real.spec.has_previews
    real.add(GenerationParams(prompt=real.spec.example_prompt, seed=3, num_inference_steps=4), preview=True)
    shown: list[Image.Image] = []
    while outputs := real.step():
        for output in outputs:
            assert output.error is None
            shown += output.latent_previews
            if output.result is not None:
                (image,) = output.result.images
    assert len(shown) == 4
    assert correlation(shown[-1], image) > 0.8
    assert correlation(shown[-1], image) > correlation(shown[0], image) - 0.05


def test_where_it_is_unknown_how_latents_look_there_are_none(tmp_path: Path) -> None:
    pipeline = load_tiny("sana", tmp_path)
    assert not pipeline.spec.has_previews
    request = pipeline.begin(request_of(TINY_PIPELINES["sana"], pipeline))
    assert pipeline.previews(request) == ()
    request.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["z-image", "chroma", "longcat-image"])
def test_images_of_known_latents_are_shown_after_a_step(tmp_path: Path, name: str) -> None:
    pipeline = load_tiny(name, tmp_path)
    assert pipeline.spec.has_previews
    with Engine(pipeline) as engine:
        engine.add(
            GenerationParams(prompt="a star", width=96, height=64, num_inference_steps=2), preview=True
        )
        shown = [each for _ in range(2) for output in engine.step() for each in output.latent_previews]
    assert [each.size for each in shown] == [(12, 8)] * 2

"""FLUX.2's packed transformer equals diffusers' own, which runs a single image at a time."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Flux2Pipeline, Flux2Transformer2DModel
from torch import Tensor

from diffuserve.models.families.flux2.config import Flux2Config
from diffuserve.models.families.flux2.positions import layout_rules
from diffuserve.models.families.flux2.transformer import Flux2Transformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.models.layers.linear import Tiling
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from support.pretend_cuda import pretend_cuda

CPU = torch.device("cpu")
SHAPES = (
    SequenceShape(32, Grid(4, 4)),
    SequenceShape(32, Grid(4, 4)),
    SequenceShape(16, Grid(3, 9)),
    SequenceShape(32, Grid(4, 4), (Grid(2, 6),)),
    SequenceShape(8, Grid(2, 2), (Grid(4, 3), Grid(2, 5), Grid(1, 1))),
)
LEVELS = ((1_000.0, 4.0), (750.0, 1.0), (12.5, 8.0), (333.3, 2.5), (600.0, 4.0))


@dataclass(frozen=True)
class Sequence:
    """A sequence of a forward pass, with its inputs."""

    shape: SequenceShape
    timestep: float
    guidance: float
    image: Tensor
    text: Tensor


@dataclass(frozen=True)
class Checkpoint:
    """The same weights twice: in diffusers' class and in ours."""

    folder: ModelFolder

    @cache  # noqa: B019 (the checkpoint lives as long as the module's tests)
    def theirs(self, dtype: torch.dtype) -> Any:
        return load_module(Flux2Transformer2DModel, self.folder.component("transformer"), dtype=dtype)

    def ours(self, dtype: torch.dtype = torch.float32, tiled: bool = False) -> Flux2Transformer:
        with torch.device("meta"):
            model = Flux2Transformer(Flux2Config.read(self.folder), choose_kernel(CPU, dtype))
        load_weights(model, self.folder.weights("transformer"), model.placements(), LoadPlan(CPU, dtype))
        if tiled:
            model.set_tiling(Tiling(256, 256), Tiling(16, 16))
        return model


@pytest.fixture(scope="module", params=["klein", "dev"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return Checkpoint(ModelFolder(write_flux2_checkpoint(folder, kind=request.param)))


def mixed(dtype: torch.dtype = torch.float32) -> list[Sequence]:
    """Return sequences of different size, text length, step, guidance and references."""
    generator = torch.Generator().manual_seed(0)
    return [
        Sequence(
            shape,
            *level,
            torch.randn(shape.image_tokens, 128, generator=generator).to(dtype),
            torch.randn(shape.text, 96, generator=generator).to(dtype),
        )
        for shape, level in zip(SHAPES, LEVELS, strict=True)
    ]


def predict(model: Flux2Transformer, wanted: list[Sequence], device: torch.device = CPU) -> list[Tensor]:
    rules = layout_rules(model.config.axes_dims_rope, model.config.rope_theta)
    with torch.inference_mode():
        packed = PackedInput(
            image=torch.cat([each.image for each in wanted]).to(device),
            text=torch.cat([each.text for each in wanted]).to(device),
            factors=torch.cat([model.factors(each.guidance, (), [each.timestep]) for each in wanted]),
            layout=pack_layout([each.shape for each in wanted], rules, device),
        )
        velocity: Tensor = model(packed)
    return list(velocity.split([each.shape.image_tokens for each in wanted]))


def predict_by_reference(model: Any, wanted: Sequence) -> Tensor:
    """Call diffusers' transformer as its `Flux2Pipeline` does."""
    grids = [torch.zeros(1, 1, grid.rows, grid.columns) for grid in wanted.shape.references]
    ids = [
        Flux2Pipeline._prepare_latent_ids(
            torch.zeros(1, 1, wanted.shape.image.rows, wanted.shape.image.columns)
        )
    ]
    ids += [Flux2Pipeline._prepare_image_ids(grids)] if grids else []
    guidance = torch.tensor([wanted.guidance]) if model.config.guidance_embeds else None
    with torch.inference_mode():
        velocity: Tensor = model(
            hidden_states=wanted.image[None],
            encoder_hidden_states=wanted.text[None],
            timestep=torch.tensor([wanted.timestep]).to(wanted.image.dtype) / 1000,
            guidance=guidance,
            img_ids=torch.cat(ids, dim=1),
            txt_ids=Flux2Pipeline._prepare_text_ids(wanted.text[None]),
            return_dict=False,
        )[0][0]
    return velocity


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference, relative to the largest value of `right`."""
    return float((left.double() - right.double()).abs().max() / right.double().abs().max())


def test_mixed_sequences_in_a_pass_equal_the_reference_for_each_alone(checkpoint: Checkpoint) -> None:
    for each, velocity in zip(mixed(), predict(checkpoint.ours(), mixed()), strict=True):
        assert distance(velocity, predict_by_reference(checkpoint.theirs(torch.float32), each)) < 1e-5


def test_in_bf16_the_error_is_no_larger_than_the_references(checkpoint: Checkpoint) -> None:
    exact = [predict_by_reference(checkpoint.theirs(torch.float32), each) for each in mixed()]
    rounded = mixed(torch.bfloat16)
    ours = predict(checkpoint.ours(torch.bfloat16), rounded)
    theirs = [predict_by_reference(checkpoint.theirs(torch.bfloat16), each) for each in rounded]
    assert max(map(distance, ours, exact)) < 1.25 * max(map(distance, theirs, exact))


def test_every_input_changes_a_prediction(checkpoint: Checkpoint) -> None:
    model = checkpoint.ours()
    one, other = mixed()[:2]
    changed = {
        "image": replace(one, image=other.image),
        "text": replace(one, text=other.text),
        "place in the prompt": replace(one, text=one.text.flip(0)),
        "timestep": replace(one, timestep=250.0),
        "place": replace(one, shape=SequenceShape(32, Grid(2, 8))),
        "reference": replace(one, shape=SequenceShape(32, Grid(2, 4), (Grid(2, 4),))),
        "guidance": replace(one, guidance=7.0),
    }
    before = predict(model, [one])[0]
    for name, variant in changed.items():
        moved = distance(predict(model, [variant])[0], before)
        assert (moved > 0.01) == (name != "guidance" or model.config.guidance_embeds), name


def test_in_fixed_tiles_a_prediction_is_bit_equal_alone_and_in_any_batch(checkpoint: Checkpoint) -> None:
    model, wanted = checkpoint.ours(tiled=True), mixed()
    alone = [predict(model, [each])[0] for each in wanted]
    for batch in (range(5), (4, 3, 2, 1, 0), (2, 0, 3), (4, 4, 1)):
        together = predict(model, [wanted[index] for index in batch])
        for index, velocity in zip(batch, together, strict=True):
            assert torch.equal(velocity, alone[index])


@pytest.mark.parametrize("count", [5, 1])
def test_on_cuda_predictions_are_those_of_the_cpu(checkpoint: Checkpoint, count: int) -> None:
    model, wanted = checkpoint.ours(), mixed()[:count]
    expected = predict(model, wanted)
    with pretend_cuda() as log:
        device = torch.device("cuda:0")
        predicted = [velocity.cpu() for velocity in predict(model.to(device), wanted, device)]
    assert "diffuserve::prepare_qkv" in log.kernels
    assert max(map(distance, predicted, expected)) < 1e-5


def test_placements_name_every_tensor_of_the_checkpoint_once(checkpoint: Checkpoint) -> None:
    assert set(checkpoint.ours().placements()) == set(checkpoint.theirs(torch.float32).state_dict())


def test_a_config_is_read_as_diffusers_writes_it(checkpoint: Checkpoint) -> None:
    config, reference = Flux2Config.read(checkpoint.folder), checkpoint.theirs(torch.float32)
    assert config == Flux2Config.from_dict(reference.config)
    assert config.dim == reference.inner_dim
    assert (config.axes_dims_rope, config.num_layers, config.num_single_layers) == ((4, 4, 4, 4), 2, 3)

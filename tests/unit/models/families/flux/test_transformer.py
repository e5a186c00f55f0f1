"""The packed transformer equals diffusers' own, which runs a single image at a time."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor

from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.positions import layout_rules, reference_corners
from diffuserve.models.families.flux.transformer import FluxTransformer, Levels
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module
from diffuserve.models.layers import fused_ops
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.models.layers.linear import Tiling
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.pretend_cuda import pretend_cuda

CPU = torch.device("cpu")
Kind = Literal["schnell", "dev"]


@dataclass(frozen=True)
class Image:
    """A sequence of a forward pass, with its inputs."""

    shape: SequenceShape
    timestep: float
    guidance: float
    image: Tensor
    text: Tensor
    pooled: Tensor


@dataclass(frozen=True)
class Checkpoint:
    """The same weights twice: in diffusers' class and in ours."""

    folder: ModelFolder

    @cache  # noqa: B019 (the checkpoint lives as long as the module's tests)
    def theirs(self, dtype: torch.dtype) -> Any:
        return load_module(FluxTransformer2DModel, self.folder.component("transformer"), dtype=dtype)

    def ours(self, dtype: torch.dtype = torch.float32, tiled: bool = False) -> FluxTransformer:
        config = FluxConfig.from_dict(self.folder.json("transformer/config.json"))
        with torch.device("meta"):
            model = FluxTransformer(config, choose_kernel(CPU, dtype))
        load_weights(model, self.folder.weights("transformer"), model.placements(), LoadPlan(CPU, dtype))
        if tiled:
            model.set_tiling(Tiling(256, 256), Tiling(16, 16))
        return model


@pytest.fixture(scope="module", params=["schnell", "dev"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return Checkpoint(ModelFolder(write_flux_checkpoint(folder, kind=request.param)))


def make_image(
    seed: int,
    shape: SequenceShape,
    timestep: float = 500.0,
    guidance: float = 3.5,
    dtype: torch.dtype = torch.float32,
) -> Image:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(shape.image_tokens, 64, generator=generator)
    text = torch.randn(shape.text, 32, generator=generator)
    pooled = torch.randn(24, generator=generator)
    return Image(shape, timestep, guidance, image.to(dtype), text.to(dtype), pooled.to(dtype))


def make_mixed(dtype: torch.dtype = torch.float32) -> list[Image]:
    """Return images of different size, text length, step and guidance, some neighbors of equal length."""
    return [
        make_image(0, SequenceShape(32, Grid(4, 4)), 1_000.0, 3.5, dtype),
        make_image(1, SequenceShape(32, Grid(4, 4)), 750.0, 1.0, dtype),
        make_image(2, SequenceShape(32, Grid(6, 4)), 250.0, 7.0, dtype),
        make_image(3, SequenceShape(32, Grid(4, 6)), 333.3, 0.0, dtype),
        make_image(4, SequenceShape(16, Grid(3, 9)), 12.5, 20.0, dtype),
        make_image(5, SequenceShape(32, Grid(4, 4)), 750.0, 1.0, dtype),
        make_image(6, SequenceShape(1, Grid(1, 1)), 1.0, 2.0, dtype),
        make_image(7, SequenceShape(32, Grid(4, 4), (Grid(2, 6),)), 600.0, 2.5, dtype),
        make_image(8, SequenceShape(8, Grid(2, 2), (Grid(4, 3), Grid(2, 5), Grid(1, 1))), 90.0, 3.5, dtype),
    ]


def predict(model: FluxTransformer, images: list[Image], device: torch.device = CPU) -> list[Tensor]:
    has_guidance = model.config.guidance_embeds
    levels = Levels(
        pooled=torch.stack([sequence.pooled for sequence in images]).to(device),
        timestep=torch.tensor([sequence.timestep for sequence in images]).to(device),
        guidance=torch.tensor([sequence.guidance for sequence in images]).to(device)
        if has_guidance
        else None,
    )
    with torch.inference_mode():
        rules = layout_rules(model.config.axes_dims_rope)
        packed = PackedInput(
            image=torch.cat([sequence.image for sequence in images]).to(device),
            text=torch.cat([sequence.text for sequence in images]).to(device),
            factors=model.factors(levels),
            layout=pack_layout([sequence.shape for sequence in images], rules, device),
        )
        velocity: Tensor = model(packed)
    return list(velocity.split([sequence.shape.image_tokens for sequence in images]))


def predict_by_reference(model: Any, image: Image) -> Tensor:
    """Call diffusers' transformer as its FluxPipeline does."""
    shape = image.shape
    corners = reference_corners(shape.references)
    ids = [_ids(shape.image, 0, 0, 0)]
    ids += [_ids(grid, 1, *corner) for grid, corner in zip(shape.references, corners, strict=True)]
    guidance = torch.tensor([image.guidance]) if model.config.guidance_embeds else None
    with torch.inference_mode():
        velocity: Tensor = model(
            hidden_states=image.image[None],
            encoder_hidden_states=image.text[None],
            pooled_projections=image.pooled[None],
            timestep=torch.tensor([image.timestep]).to(image.image.dtype) / 1000,
            guidance=guidance,
            img_ids=torch.cat(ids).to(image.image.dtype),
            txt_ids=torch.zeros(shape.text, 3, dtype=image.image.dtype),
            return_dict=False,
        )[0][0]
    return velocity


def _ids(grid: Grid, first: int, top: int, left: int) -> Tensor:
    rows, columns = torch.meshgrid(
        top + torch.arange(grid.rows), left + torch.arange(grid.columns), indexing="ij"
    )
    return torch.stack([torch.full_like(rows, first), rows, columns], dim=-1).view(-1, 3)


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference, relative to the largest value of `right`."""
    return float((left.double() - right.double()).abs().max() / right.double().abs().max())


def test_mixed_sequences_in_a_pass_equal_the_reference_for_each_alone(checkpoint: Checkpoint) -> None:
    images = make_mixed()
    for image, velocity in zip(images, predict(checkpoint.ours(), images), strict=True):
        expected = predict_by_reference(checkpoint.theirs(torch.float32), image)
        assert distance(velocity, expected) < 1e-5


def test_in_bf16_the_error_is_no_larger_than_the_references(checkpoint: Checkpoint) -> None:
    exact = [predict_by_reference(checkpoint.theirs(torch.float32), image) for image in make_mixed()]
    rounded = make_mixed(torch.bfloat16)
    ours = predict(checkpoint.ours(torch.bfloat16), rounded)
    theirs = [predict_by_reference(checkpoint.theirs(torch.bfloat16), image) for image in rounded]
    assert {velocity.dtype for velocity in ours} == {torch.bfloat16}
    assert max(map(distance, ours, theirs)) < 0.02
    assert max(map(distance, ours, exact)) < 1.25 * max(map(distance, theirs, exact))


def test_every_input_of_an_image_changes_its_prediction(checkpoint: Checkpoint) -> None:
    model = checkpoint.ours()
    image, other = (make_image(seed, SequenceShape(16, Grid(4, 6))) for seed in (0, 1))
    changed = {
        "image": replace(image, image=other.image),
        "text": replace(image, text=other.text),
        "pooled": replace(image, pooled=other.pooled),
        "timestep": replace(image, timestep=250.0),
        "place": replace(image, shape=SequenceShape(16, Grid(6, 4))),
        "reference": replace(image, shape=SequenceShape(16, Grid(2, 6), (Grid(2, 6),))),
        "guidance": replace(image, guidance=7.0),
    }
    before = predict(model, [image])[0]
    for name, variant in changed.items():
        moved = distance(predict(model, [variant])[0], before)
        assert (moved > 0.01) == (name != "guidance" or model.config.guidance_embeds), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_neighbor_full_of_nan_changes_no_other_sequence(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    images = make_mixed(dtype)
    poisoned = [*images[:1], replace(images[1], image=images[1].image * torch.nan), *images[2:]]
    velocities = predict(checkpoint.ours(dtype), poisoned)
    finite = [bool(velocity.isfinite().all()) for velocity in velocities]
    assert finite == [index != 1 for index in range(len(images))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_fixed_tiles_a_prediction_is_bit_equal_alone_and_in_any_batch(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> None:
    model, images = checkpoint.ours(dtype, tiled=True), make_mixed(dtype)
    alone = [predict(model, [image])[0] for image in images]
    for batch in (range(7), (6, 5, 4, 3, 2, 1, 0), (0, 1, 5), (2, 0, 3), (4, 4, 4, 1), tuple(range(7)) * 3):
        together = predict(model, [images[index] for index in batch])
        for index, velocity in zip(batch, together, strict=True):
            assert torch.equal(velocity, alone[index])


@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "no kernels"])
@pytest.mark.parametrize("count", [9, 1])
def test_on_cuda_predictions_are_those_of_the_cpu(
    checkpoint: Checkpoint, has_kernels: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = checkpoint.ours(), make_mixed()[:count]
    expected = predict(model, images)
    with pretend_cuda() as log:
        if not has_kernels:
            monkeypatch.setattr(fused_ops, "_works_on", lambda _device: False)
        device = torch.device("cuda:0")
        predicted = [velocity.cpu() for velocity in predict(model.to(device), images, device)]
    assert ("diffuserve::prepare_qkv" in log.kernels) == has_kernels
    assert max(map(distance, predicted, expected)) < 1e-5


def test_fixed_tiles_change_a_prediction_by_no_more_than_rounding(checkpoint: Checkpoint) -> None:
    images = make_mixed()
    tiled, free = (predict(checkpoint.ours(tiled=flag), images) for flag in (True, False))
    assert max(map(distance, tiled, free)) < 1e-5


def test_placements_name_every_tensor_of_the_checkpoint_once(checkpoint: Checkpoint) -> None:
    theirs = set(checkpoint.theirs(torch.float32).state_dict())
    assert set(checkpoint.ours().placements()) == theirs


def test_a_config_is_read_as_diffusers_writes_it(checkpoint: Checkpoint) -> None:
    config = FluxConfig.from_dict(checkpoint.folder.json("transformer/config.json"))
    reference = checkpoint.theirs(torch.float32).config
    assert config == FluxConfig.from_dict(reference)
    assert config.dim == checkpoint.theirs(torch.float32).inner_dim
    assert (config.axes_dims_rope, config.num_layers, config.num_single_layers) == ((4, 6, 6), 2, 2)

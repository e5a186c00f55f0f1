"""The packed transformer equals diffusers' own, which runs a single image at a time."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.families.qwen_image.positions import layout_rules
from diffuserve.models.families.qwen_image.transformer import QwenImageTransformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.models.layers.linear import Tiling
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from support.pretend_cuda import pretend_cuda

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Image:
    """A sequence of a forward pass, with its inputs."""

    shape: SequenceShape
    timestep: float
    image: Tensor
    text: Tensor


@dataclass(frozen=True)
class Checkpoint:
    """The same weights twice: in diffusers' class and in ours."""

    folder: ModelFolder

    @property
    def config(self) -> QwenImageConfig:
        return QwenImageConfig.read(self.folder)

    @cache  # noqa: B019 (the checkpoint lives as long as the module's tests)
    def theirs(self, dtype: torch.dtype) -> Any:
        component = self.folder.component("transformer")
        return load_module(QwenImageTransformer2DModel, component, dtype=dtype)

    def ours(self, dtype: torch.dtype = torch.float32, tiled: bool = False) -> QwenImageTransformer:
        with torch.device("meta"):
            model = QwenImageTransformer(self.config, choose_kernel(CPU, dtype))
        load_weights(model, self.folder.weights("transformer"), model.placements(), LoadPlan(CPU, dtype))
        if tiled:
            model.set_tiling(Tiling(256, 256), Tiling(16, 16))
        return model

    def predict(
        self, model: QwenImageTransformer, images: list[Image], device: torch.device = CPU
    ) -> list[Tensor]:
        config = self.config
        timesteps = torch.tensor([sequence.timestep for sequence in images])
        if config.zero_cond_t:
            timesteps = torch.cat([timesteps, timesteps * 0])
        with torch.inference_mode():
            rules = layout_rules(config.axes_dims_rope, config.zero_cond_t)
            packed = PackedInput(
                image=torch.cat([sequence.image for sequence in images]).to(device),
                text=torch.cat([sequence.text for sequence in images]).to(device),
                factors=model.factors(timesteps.to(device)),
                layout=pack_layout([sequence.shape for sequence in images], rules, device),
            )
            velocities = model(packed).split([sequence.shape.image_tokens for sequence in images])
        return [_of_image(each, image) for each, image in zip(velocities, images, strict=True)]


@pytest.fixture(scope="module", params=["image", "edit-2511"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return Checkpoint(ModelFolder(write_qwen_image_checkpoint(folder, kind=request.param, seed=5)))


def make_image(
    seed: int, shape: SequenceShape, timestep: float = 500.0, dtype: torch.dtype = torch.float32
) -> Image:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(shape.image_tokens, 64, generator=generator)
    text = torch.randn(shape.text, 32, generator=generator)
    return Image(shape, timestep, image.to(dtype), text.to(dtype))


def make_mixed(dtype: torch.dtype = torch.float32) -> list[Image]:
    """Return images of different size, text length, step and references, some neighbors of equal length."""
    return [
        make_image(0, SequenceShape(32, Grid(4, 4)), 1_000.0, dtype),
        make_image(1, SequenceShape(32, Grid(4, 4)), 750.0, dtype),
        make_image(2, SequenceShape(32, Grid(6, 4)), 250.0, dtype),
        make_image(3, SequenceShape(16, Grid(3, 9)), 12.5, dtype),
        make_image(4, SequenceShape(1, Grid(1, 1)), 1.0, dtype),
        make_image(5, SequenceShape(32, Grid(4, 4), (Grid(2, 6),)), 600.0, dtype),
        make_image(6, SequenceShape(8, Grid(2, 2), (Grid(4, 3), Grid(2, 5), Grid(1, 1))), 90.0, dtype),
    ]


def predict_by_reference(model: Any, image: Image) -> Tensor:
    """Call diffusers' transformer as its pipelines do."""
    grids = (image.shape.image, *image.shape.references)
    with torch.inference_mode():
        velocity: Tensor = model(
            hidden_states=image.image[None],
            encoder_hidden_states=image.text[None],
            timestep=torch.tensor([image.timestep]).to(image.image.dtype) / 1000,
            img_shapes=[[(1, grid.rows, grid.columns) for grid in grids]],
            return_dict=False,
        )[0][0]
    return _of_image(velocity, image)


def _of_image(velocity: Tensor, image: Image) -> Tensor:
    """Return what is read of a result: nothing of the references."""
    return velocity[: image.shape.image.tokens]


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference, relative to the largest value of `right`."""
    return float((left.double() - right.double()).abs().max() / right.double().abs().max())


def test_mixed_sequences_in_a_pass_equal_the_reference_for_each_alone(checkpoint: Checkpoint) -> None:
    images = make_mixed()
    for image, velocity in zip(images, checkpoint.predict(checkpoint.ours(), images), strict=True):
        expected = predict_by_reference(checkpoint.theirs(torch.float32), image)
        assert distance(velocity, expected) < 1e-5


def test_in_bf16_the_error_is_no_larger_than_the_references(checkpoint: Checkpoint) -> None:
    exact = [predict_by_reference(checkpoint.theirs(torch.float32), image) for image in make_mixed()]
    rounded = make_mixed(torch.bfloat16)
    ours = checkpoint.predict(checkpoint.ours(torch.bfloat16), rounded)
    theirs = [predict_by_reference(checkpoint.theirs(torch.bfloat16), image) for image in rounded]
    assert {velocity.dtype for velocity in ours} == {torch.bfloat16}
    assert max(map(distance, ours, theirs)) < 0.03
    assert max(map(distance, ours, exact)) < 1.25 * max(map(distance, theirs, exact))


def test_every_input_of_an_image_changes_its_prediction(checkpoint: Checkpoint) -> None:
    model = checkpoint.ours()
    image, other = (make_image(seed, SequenceShape(16, Grid(4, 6))) for seed in (0, 1))
    changed = {
        "image": replace(image, image=other.image),
        "text": replace(image, text=other.text),
        "timestep": replace(image, timestep=250.0),
        "place": replace(image, shape=SequenceShape(16, Grid(6, 4))),
    }
    before = checkpoint.predict(model, [image])[0]
    for name, variant in changed.items():
        assert distance(checkpoint.predict(model, [variant])[0], before) > 0.01, name


def test_references_count_by_their_content_and_their_places(checkpoint: Checkpoint) -> None:
    model = checkpoint.ours()
    image, other = (make_image(seed, SequenceShape(16, Grid(2, 6), (Grid(2, 6),))) for seed in (0, 1))
    content = torch.cat([image.image[:12], other.image[12:]])
    shapes = [SequenceShape(16, Grid(2, 6), grids) for grids in ((Grid(3, 4),), (Grid(1, 6), Grid(1, 6)))]
    before = checkpoint.predict(model, [image])[0]
    for variant in (replace(image, image=content), *(replace(image, shape=shape) for shape in shapes)):
        assert distance(checkpoint.predict(model, [variant])[0], before) > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_neighbor_full_of_nan_changes_no_other_sequence(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    images = make_mixed(dtype)
    poisoned = [*images[:1], replace(images[1], image=images[1].image * torch.nan), *images[2:]]
    velocities = checkpoint.predict(checkpoint.ours(dtype), poisoned)
    finite = [bool(velocity.isfinite().all()) for velocity in velocities]
    assert finite == [index != 1 for index in range(len(images))]


def test_in_fixed_tiles_a_prediction_is_bit_equal_alone_and_in_any_batch(checkpoint: Checkpoint) -> None:
    model, images = checkpoint.ours(tiled=True), make_mixed()
    alone = [checkpoint.predict(model, [image])[0] for image in images]
    for batch in (range(7), (6, 5, 4, 3, 2, 1, 0), (0, 1, 5), (4, 4, 4, 1)):
        together = checkpoint.predict(model, [images[index] for index in batch])
        for index, velocity in zip(batch, together, strict=True):
            assert torch.equal(velocity, alone[index])


def test_on_cuda_predictions_are_those_of_the_cpu(checkpoint: Checkpoint) -> None:
    model, images = checkpoint.ours(), make_mixed()
    expected = checkpoint.predict(model, images)
    with pretend_cuda() as log:
        device = torch.device("cuda:0")
        predicted = checkpoint.predict(model.to(device), images, device)
        assert max(map(distance, [each.cpu() for each in predicted], expected)) < 1e-5
    assert {"diffuserve::prepare_qkv", "diffuserve::norm_modulated"} <= set(log.kernels)


def test_placements_name_every_tensor_of_the_checkpoint_once(checkpoint: Checkpoint) -> None:
    theirs = set(checkpoint.theirs(torch.float32).state_dict())
    assert set(checkpoint.ours().placements()) == theirs


def test_a_config_is_read_as_diffusers_writes_it(checkpoint: Checkpoint) -> None:
    reference = checkpoint.theirs(torch.float32)
    assert checkpoint.config == QwenImageConfig.from_dict(reference.config)
    assert checkpoint.config.dim == reference.inner_dim

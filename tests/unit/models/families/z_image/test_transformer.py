"""The packed transformer equals diffusers' own, which runs a padded batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import ZImageTransformer2DModel
from torch import Tensor, nn

from diffuserve.models.compiled.halves import export_half
from diffuserve.models.families.packed_images.latents import pack_latents, unpack_latents
from diffuserve.models.families.packed_images.transformer import PackedTransformer
from diffuserve.models.families.z_image import captions, transformer
from diffuserve.models.families.z_image.captions import CaptionRefiner
from diffuserve.models.families.z_image.compiled import block_halves, use_compiled
from diffuserve.models.families.z_image.config import ZImageConfig
from diffuserve.models.families.z_image.positions import layout_rules, padding
from diffuserve.models.families.z_image.transformer import ZImageTransformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module
from diffuserve.models.layers import fused_ops
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.models.layers.linear import Tiling
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights, num_parameters
from diffuserve.parallel.ranks import TensorRanks
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.pretend_cuda import pretend_cuda

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pass:
    """A sequence of a forward pass: latents, the text encoder's states, and the time, 1 for the image."""

    latents: Tensor
    states: Tensor
    time: float

    @property
    def grid(self) -> Grid:
        return Grid(self.latents.shape[1] // 2, self.latents.shape[2] // 2)


@dataclass(frozen=True)
class Ours:
    refiner: CaptionRefiner
    transformer: ZImageTransformer


@dataclass(frozen=True)
class Checkpoint:
    """The same weights twice: in diffusers' class and in ours."""

    folder: ModelFolder

    @cache  # noqa: B019 (the checkpoint lives as long as the module's tests)
    def theirs(self, dtype: torch.dtype) -> Any:
        return load_module(ZImageTransformer2DModel, self.folder.component("transformer"), dtype=dtype)

    def ours(self, dtype: torch.dtype = torch.float32, tiled: bool = False) -> Ours:
        config, kernel = ZImageConfig.read(self.folder), choose_kernel(CPU, dtype)
        with torch.device("meta"):
            parts = Ours(CaptionRefiner(config, kernel), ZImageTransformer(config, kernel))
        self._load(parts.refiner, dtype, transformer.WEIGHTS)
        self._load(parts.transformer, dtype, captions.WEIGHTS)
        if tiled:
            for part in (parts.refiner, parts.transformer):
                part.set_tiling(Tiling(256, 256), Tiling(16, 16))
        return parts

    def _load(self, part: PackedTransformer, dtype: torch.dtype, ignored: tuple[str, ...]) -> None:
        load_weights(
            part, self.folder.weights("transformer"), part.placements(), LoadPlan(CPU, dtype), ignored
        )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(ModelFolder(write_z_image_checkpoint(tmp_path_factory.mktemp("z-image"))))


def make_sequence(
    seed: int, text: int, rows: int, columns: int, time: float = 0.5, dtype: torch.dtype = torch.float32
) -> Pass:
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(16, 2 * rows, 2 * columns, generator=generator)
    return Pass(latents.to(dtype), torch.randn(text, 32, generator=generator).to(dtype), time)


def make_mixed(dtype: torch.dtype = torch.float32) -> list[Pass]:
    """Return sequences of different sizes, prompts and times, with and without padding."""
    return [
        make_sequence(0, 32, 8, 4, 0.0, dtype),
        make_sequence(1, 32, 8, 4, 0.25, dtype),
        make_sequence(2, 7, 6, 4, 0.75, dtype),
        make_sequence(3, 40, 4, 6, 0.667, dtype),
        make_sequence(4, 1, 3, 9, 0.99, dtype),
        make_sequence(5, 64, 1, 1, 0.1, dtype),
        make_sequence(6, 33, 7, 7, 0.5, dtype),
    ]


def predict(ours: Ours, sequences: Sequence[Pass], device: torch.device = CPU) -> list[Tensor]:
    """Return the velocities as latents."""
    config = ours.transformer.config
    with torch.inference_mode():
        lengths = [len(each.states) for each in sequences]
        states = torch.cat([each.states for each in sequences]).to(device)
        texts = ours.refiner(states, lengths, [()] * len(lengths))
        pairs = list(zip(sequences, texts, strict=True))
        shapes = [SequenceShape(len(t), s.grid, padding=padding(s.grid.tokens)) for s, t in pairs]
        packed = PackedInput(
            image=torch.cat([padded_tokens(each) for each in sequences]).to(device),
            text=torch.cat(texts),
            factors=ours.transformer.factors(torch.tensor([each.time for each in sequences]).to(device)),
            layout=pack_layout(shapes, layout_rules(config), device),
        )
        velocity: Tensor = ours.transformer(packed)
    parts = velocity.split([shape.image_tokens for shape in shapes])
    return [
        unpack_latents(part[None, : each.grid.tokens], each.grid.rows)[0]
        for each, part in zip(sequences, parts, strict=True)
    ]


def padded_tokens(sequence: Pass) -> Tensor:
    tokens = pack_latents(sequence.latents[None])[0]
    padded = F.pad(tokens, (0, 1, 0, padding(len(tokens))))
    padded[len(tokens) :, -1] = 1
    return padded


def predict_by_reference(model: Any, sequence: Pass) -> Tensor:
    """Call diffusers' transformer as its pipeline does."""
    with torch.inference_mode():
        [predicted] = model(
            [sequence.latents[:, None]], torch.tensor([sequence.time]), [sequence.states], return_dict=False
        )[0]
    velocity: Tensor = -predicted[:, 0].float()
    return velocity


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference, relative to the largest value of `right`."""
    return float((left.double() - right.double()).abs().max() / right.double().abs().max())


def test_mixed_sequences_in_a_pass_equal_the_reference_for_each_alone(checkpoint: Checkpoint) -> None:
    sequences = make_mixed()
    for sequence, velocity in zip(sequences, predict(checkpoint.ours(), sequences), strict=True):
        expected = predict_by_reference(checkpoint.theirs(torch.float32), sequence)
        assert distance(velocity, expected) < 1e-5


def test_in_bf16_the_error_is_no_larger_than_the_references(checkpoint: Checkpoint) -> None:
    exact = [predict_by_reference(checkpoint.theirs(torch.float32), each) for each in make_mixed()]
    rounded = make_mixed(torch.bfloat16)
    ours = predict(checkpoint.ours(torch.bfloat16), rounded)
    theirs = [predict_by_reference(checkpoint.theirs(torch.bfloat16), each) for each in rounded]
    assert {velocity.dtype for velocity in ours} == {torch.float32}
    assert max(map(distance, ours, theirs)) < 0.03
    assert max(map(distance, ours, exact)) < 1.25 * max(map(distance, theirs, exact))


def test_every_input_of_an_image_changes_its_prediction(checkpoint: Checkpoint) -> None:
    ours, image, other = checkpoint.ours(), make_sequence(0, 16, 4, 6), make_sequence(1, 16, 4, 6)
    before = predict(ours, [image])[0]
    changed = [
        replace(image, latents=other.latents),
        replace(image, states=other.states),
        replace(image, states=image.states[:15]),
        replace(image, time=0.75),
    ]
    assert all(distance(predict(ours, [variant])[0], before) > 0.01 for variant in changed)


def test_learned_padding_is_read(checkpoint: Checkpoint) -> None:
    """Padding stands behind the prompt's tokens and the image's, and attention reads it."""
    ours, image = checkpoint.ours(), make_sequence(0, 16, 4, 6)
    before = predict(ours, [image])[0]
    for module, name in ((ours.transformer, "x_pad_token"), (ours.refiner, "cap_pad_token")):
        kept = getattr(module, name)
        setattr(module, name, nn.Parameter(-kept, requires_grad=False))
        assert distance(predict(ours, [image])[0], before) > 0.01, name
        setattr(module, name, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_fixed_tiles_a_prediction_is_bit_equal_alone_and_in_any_batch(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> None:
    ours, sequences = checkpoint.ours(dtype, tiled=True), make_mixed(dtype)
    alone = [predict(ours, [sequence])[0] for sequence in sequences]
    for batch in (range(7), (6, 5, 4, 3, 2, 1, 0), (0, 1, 5), (4, 4, 4, 1), tuple(range(7)) * 2):
        together = predict(ours, [sequences[index] for index in batch])
        for index, velocity in zip(batch, together, strict=True):
            assert torch.equal(velocity, alone[index])


def test_a_neighbor_full_of_nan_changes_no_other_sequence(checkpoint: Checkpoint) -> None:
    sequences = make_mixed()
    sequences[1] = replace(sequences[1], latents=sequences[1].latents * torch.nan)
    finite = [bool(velocity.isfinite().all()) for velocity in predict(checkpoint.ours(), sequences)]
    assert finite == [index != 1 for index in range(len(sequences))]


@pytest.mark.parametrize("has_kernels", [True, False], ids=["kernels", "no kernels"])
@pytest.mark.parametrize("count", [7, 1])
def test_on_cuda_predictions_are_those_of_the_cpu(
    checkpoint: Checkpoint, has_kernels: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, sequences = checkpoint.ours(), make_mixed()[:count]
    expected = predict(ours, sequences)
    with pretend_cuda() as log:
        if not has_kernels:
            monkeypatch.setattr(fused_ops, "_works_on", lambda _device: False)
        device = torch.device("cuda:0")
        moved = Ours(ours.refiner.to(device), ours.transformer.to(device))
        predicted = [velocity.cpu() for velocity in predict(moved, sequences, device)]
    assert ("diffuserve::rms_norm_modulated" in log.kernels) == has_kernels
    assert max(map(distance, predicted, expected)) < 1e-5


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_exported_halves_compute_what_blocks_do_for_any_number_of_tokens(
    checkpoint: Checkpoint, dtype: torch.dtype, most: float
) -> None:
    ours = checkpoint.ours(dtype)
    batches = (make_mixed(dtype), make_mixed(dtype)[4:5])
    eager = [predict(ours, batch) for batch in batches]
    exported = {
        name: export_half(half).module()
        for name, half in block_halves(ours.transformer.config, CPU, dtype).items()
    }
    use_compiled(ours.transformer.blocks, exported)
    for batch, expected in zip(batches, eager, strict=True):
        assert max(map(distance, predict(ours, batch), expected)) < most


def test_placements_name_every_tensor_of_the_checkpoint_once(checkpoint: Checkpoint) -> None:
    ours = checkpoint.ours()
    placed = [*ours.refiner.placements(), *ours.transformer.placements()]
    assert sorted(placed) == sorted(checkpoint.theirs(torch.float32).state_dict())


def test_a_config_is_read_as_diffusers_writes_it(checkpoint: Checkpoint) -> None:
    config, reference = ZImageConfig.read(checkpoint.folder), checkpoint.theirs(torch.float32)
    assert (config.dim, config.n_layers, config.n_refiner_layers) == (96, 2, 1)
    assert config.hidden_dim == reference.layers[0].feed_forward.w1.out_features
    assert config.axes_dims == tuple(reference.config.axes_dims)


class OneOfTwo(TensorRanks):
    """One of two ranks, which exchanges nothing."""

    def __init__(self) -> None:
        self.index, self.size = 0, 2


def test_a_rank_of_two_has_half_of_the_published_models_weights() -> None:
    """Count 6.15 billion; modulations, 2 % of them, are whole on each rank."""
    config, kernel = ZImageConfig(), choose_kernel(CPU, torch.float32)
    with torch.device("meta"):
        parts = (ZImageTransformer(config, kernel), CaptionRefiner(config, kernel))
        whole = sum(map(num_parameters, parts))
        for part in parts:
            part.share_weights(OneOfTwo())
    assert whole == pytest.approx(6.15e9, rel=0.001)
    assert sum(map(num_parameters, parts)) < 0.512 * whole

"""Compiled blocks: what is exported, which are used, and that nothing is compiled in an engine."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from diffuserve.domain.errors import DeviceUnavailable, InvalidModel
from diffuserve.models.compiled.halves import compile_half
from diffuserve.models.compiled.store import CompiledKey, compile_blocks, use_compiled_blocks
from diffuserve.models.families.flux.compiled import flux_halves
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.pipeline import FluxPipeline
from diffuserve.models.families.flux.positions import layout_rules
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.families.packed_images.compiled import DOUBLE_HALVES, SINGLE_HALVES, use_compiled
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.registry import load_pipeline, open_compilable
from diffuserve.models.weights.load_plan import LoadPlan
from support.compiled_halves import decibels, exported

CPU = torch.device("cpu")
SMALL = FluxConfig(
    in_channels=8,
    num_layers=2,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=12,
    pooled_projection_dim=12,
    axes_dims_rope=(4, 6, 6),
)
BATCHES = (
    (SequenceShape(5, Grid(3, 4)),),
    (SequenceShape(7, Grid(4, 4)), SequenceShape(2, Grid(1, 3)), SequenceShape(7, Grid(4, 4))),
    (SequenceShape(33, Grid(9, 20)), SequenceShape(64, Grid(2, 2))),
)
"""Batches of other numbers of tokens than blocks are traced with."""


@pytest.mark.parametrize(
    ("dtype", "min_db"), [(torch.float32, 110), pytest.param(torch.bfloat16, 38, marks=pytest.mark.slow)]
)
def test_exported_halves_compute_what_blocks_do_for_any_number_of_tokens(
    dtype: torch.dtype, min_db: float
) -> None:
    transformer = _transformer(SMALL, dtype)
    eager = [_velocity(transformer, shapes) for shapes in BATCHES]
    halves = {name: exported(half) for name, half in flux_halves(SMALL, CPU, dtype).items()}
    use_compiled(transformer.transformer_blocks, transformer.single_transformer_blocks, halves)
    for shapes, expected in zip(BATCHES, eager, strict=True):
        assert decibels(_velocity(transformer, shapes), expected) > min_db


@pytest.fixture(scope="module")
def tiny() -> Pipeline:
    return load_pipeline("tiny-flux", LoadPlan(CPU, torch.float32))


@pytest.fixture
def own_folder(tiny: Pipeline, tmp_path: Path) -> Path:
    """The folder of the compiled blocks of tiny-flux, with files in it that are no code."""
    assert tiny.blocks is not None
    folder = tmp_path / CompiledKey.of(tiny.blocks.shape, tiny.dtype, tiny.device).folder_name
    folder.mkdir(mode=0o700)
    for name in (*DOUBLE_HALVES, *SINGLE_HALVES):
        (folder / f"{name}.pt2").write_bytes(b"not a package")
    return folder


def test_blocks_run_eagerly_where_none_are_compiled_for_them(
    tiny: FluxPipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert not use_compiled_blocks(tiny, tmp_path, "cpu")
    assert "`diffuserve compile` has made none for this model" in caplog.text
    with _no_compilation():
        _velocity(tiny.transformer, BATCHES[0])


def test_engines_on_cpus_use_none(tiny: Pipeline, own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not use_compiled_blocks(tiny, own_folder.parent)
    assert not caplog.text, "nothing is looked at"


def test_files_that_are_no_code_are_passed_over(
    tiny: Pipeline, own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not use_compiled_blocks(tiny, own_folder.parent, "cpu")
    assert "blocks run eagerly" in caplog.text


@pytest.mark.parametrize("place", ["", "single_end.pt2"])
def test_code_that_others_could_have_written_is_not_loaded(
    tiny: Pipeline,
    own_folder: Path,
    place: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diffuserve.models.compiled.store.load_half", lambda _file: tuple)
    (own_folder / place).chmod(0o770)
    assert not use_compiled_blocks(tiny, own_folder.parent, "cpu")
    assert f"{own_folder / place}: other users can write it, and it is code" in caplog.text


@pytest.mark.parametrize("other", ["dtype", "torch_version", "device", "source", "block_shape"])
def test_blocks_for_anything_else_do_not_fit(other: str) -> None:
    key = CompiledKey("flux-2x16", "bfloat16", "NVIDIA H100 sm_90", "2.13", "0")
    assert CompiledKey(**{**vars(key), other: "another"}).folder_name != key.folder_name


def test_quantized_blocks_run_eagerly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from diffuserve.domain.models.quantization import Quantization

    caplog.set_level(logging.INFO)
    quantized = load_pipeline("tiny-flux", LoadPlan(CPU, torch.float32, quantization=Quantization.FP8))
    assert not use_compiled_blocks(quantized, tmp_path, "cpu")
    assert "their weights are quantized" in caplog.text


def test_other_families_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"StableDiffusionXLPipeline cannot be compiled, FLUX\.1 can"):
        open_compilable("tiny-sd", CPU, None)


def test_a_machine_without_a_compiler_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    half = flux_halves(SMALL, CPU, torch.float32)["single_end"]
    with pytest.raises(DeviceUnavailable, match=r"g\+\+ is not there"):
        compile_half(half, tmp_path / "half.pt2")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch
def test_compiled_blocks_are_loaded_without_tracing_and_compute_what_eager_ones_do(
    tmp_path: Path,
) -> None:
    blocks = open_compilable("tiny-flux", CPU, torch.bfloat16)
    compiled = compile_blocks(blocks, CPU, tmp_path / "compiled")
    assert sorted(file.stem for file in compiled.iterdir()) == sorted((*DOUBLE_HALVES, *SINGLE_HALVES))
    pipeline = load_pipeline("tiny-flux", LoadPlan(CPU, torch.bfloat16))
    assert isinstance(pipeline, FluxPipeline)
    eager = [_velocity(pipeline.transformer, shapes) for shapes in BATCHES]
    with _no_compilation():
        assert use_compiled_blocks(pipeline, tmp_path / "compiled", "cpu")
        found = [_velocity(pipeline.transformer, shapes) for shapes in BATCHES]
    assert all(decibels(*pair) > 30 for pair in zip(found, eager, strict=True))


class _no_compilation:
    """Count what is traced or compiled within the block, of which there must be nothing."""

    def __enter__(self) -> None:
        counters.clear()
        self._patch = pytest.MonkeyPatch()
        for module, name in (("torch.export", "export"), ("torch._inductor", "aoti_compile_and_package")):
            self._patch.setattr(f"{module}.{name}", self._refuse)

    def __exit__(self, *_error: object) -> None:
        self._patch.undo()
        assert not any(counters.values()), counters

    def _refuse(self, *_args: object, **_kwargs: object) -> None:
        raise AssertionError("something is compiled")


def _transformer(config: FluxConfig, dtype: torch.dtype) -> FluxTransformer:
    transformer = FluxTransformer(config, choose_kernel(CPU, torch.float32)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for weight in transformer.parameters():
        weight.requires_grad_(False).copy_(torch.randn(weight.shape, generator=generator) / 4)
    return transformer


@torch.inference_mode()
def _velocity(transformer: FluxTransformer, shapes: tuple[SequenceShape, ...]) -> Tensor:
    config, dtype = transformer.config, transformer.proj_out.weight.dtype
    layout = pack_layout(shapes, layout_rules(config.axes_dims_rope), CPU)
    generator = torch.Generator().manual_seed(1)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    packed = PackedInput(
        image=random(len(layout.image_at), config.in_channels),
        text=random(len(layout.text_at), config.joint_attention_dim),
        factors=random(len(shapes), transformer.num_factors, config.dim) / 4,
        layout=layout,
    )
    velocity: Tensor = transformer(packed)
    return velocity.float()

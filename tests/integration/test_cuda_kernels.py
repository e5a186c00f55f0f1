"""Denoising steps of packed models at full size stay within bounds on kernels and memory traffic."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.gpu.predicted import PUBLISHED, published_rows
from benchmarks.gpu.stages.finding import Setting
from benchmarks.gpu.stages.kernels import kernels
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.layers.joint.packing import Grid, SequenceShape
from support.packed_step import FLUX_SCHNELL, MODELS, count_step, predicted_bytes

GIGA, TERA = 10**9, 10**12
_FEW_BLOCKS = FluxConfig(num_layers=6, num_single_layers=12)
SHORT = replace(FLUX_SCHNELL, config=_FEW_BLOCKS, make=partial(FluxTransformer, _FEW_BLOCKS))
"""What one step has more of than another, it has in blocks of each kind: all 57 of them would take long."""


@dataclass(frozen=True)
class Bounds:
    """What a step of one image of 1024×1024 may take; `elementwise` is in GB, `flops` in TFLOP."""

    kernels: int
    elementwise: float
    attentions: int
    flops: tuple[float, float]


BOUNDS = {
    "FLUX.1-schnell": Bounds(700, 20, 57, (65, 75)),
    "FLUX.2-klein-4B": Bounds(280, 15, 25, (33, 36)),
    "Z-Image-Turbo": Bounds(370, 24, 32, (55, 58)),
    "Z-Image, guided": Bounds(375, 47, 32, (108, 114)),
    "Qwen-Image, guided": Bounds(1_280, 66, 60, (135, 142)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("Z-Image-Turbo", "FLUX.2-klein-4B") else [])
        for name in BOUNDS
    ],
)
def test_a_step_of_one_image_stays_within_its_bounds(name: str) -> None:
    model, bounds = MODELS[name], BOUNDS[name]
    shapes = model.shapes(1, Grid(64, 64))
    step = count_step(model, shapes)
    assert step.kernels.total.kernels <= bounds.kernels
    assert step.kernels.of("elementwise").bytes <= bounds.elementwise * GIGA
    assert step.kernels.of("attention").kernels == bounds.attentions
    least, most = bounds.flops
    assert least * TERA < step.flops < most * TERA
    assert step.kernels.peak_bytes <= predicted_bytes(model, shapes)


def test_images_in_one_step_have_hardly_more_traffic_than_apart() -> None:
    shapes = [
        SequenceShape(256, Grid(48, 85)),
        SequenceShape(256, Grid(32, 64)),
        SequenceShape(512, Grid(64, 64)),
    ]

    def traffic(*shapes: SequenceShape) -> int:
        return count_step(SHORT, shapes).kernels.of("elementwise").bytes

    assert traffic(*shapes) <= 1.1 * sum(traffic(shape) for shape in shapes)


def test_the_kernels_of_a_step_do_not_depend_on_how_many_adapters_it_has() -> None:
    shapes = SHORT.shapes(8, Grid(32, 32))
    plain, four, eight = (
        count_step(SHORT, shapes, adapters) for adapters in ((), [0, 0, 1, 1, 2, 2, 3, 3], range(8))
    )
    assert four.kernels.total.kernels == eight.kernels.total.kernels <= 4 * plain.kernels.total.kernels
    assert eight.flops <= 1.07 * plain.flops
    assert eight.kernels.of("elementwise").bytes <= 2 * plain.kernels.of("elementwise").bytes


def test_the_prediction_gives_the_published_time_that_it_is_calibrated_by() -> None:
    [row] = published_rows(PUBLISHED[:1])
    assert (row["model"], row["GPU"], row["image"]) == ("Z-Image-Turbo", "H800", "1024×1024")
    published, predicted = (float(row[name].split()[-2]) for name in ("published", "*predicted*"))
    assert predicted == pytest.approx(published, rel=0.03)


def test_the_stage_for_a_gpu_finds_nothing_wrong_on_a_pretended_one(tmp_path: Path) -> None:
    findings = list(kernels(Setting(tmp_path, is_pretended=True)))
    assert len(findings) > 20
    assert [found for found in findings if found.ok is not True] == []

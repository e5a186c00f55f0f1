"""Predicted seconds of an image on GPUs that nothing was measured on, from what a step is counted to be.

A kernel takes what its operations or its bytes take, whichever is longer, and a launch. An image takes its
steps, and the operations of its text encoder and of its decoder at the rate of products:

    step  = Σ over kernels of max(operations / (peak · efficiency), bytes / (bandwidth · efficiency)) + launch
    image = steps · step / images of a step + (encoding + decoding) / (peak · efficiency)

How near to a GPU's peaks kernels come is taken from others: the efficiencies of `KERNELS` are those of
kernels measured alone, a bound that no whole program reaches. `SERVED` differs in its products, whose
efficiency is set so that Z-Image-Turbo's published images a second of 1024×1024 on an H800 come out, and
covers what a program loses between and in its kernels. Other published figures are predicted with the same
numbers, as a check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuserve.models.layers.joint.packing import Grid
from support.kernel_counter import Work, kind_of
from support.packed_step import MODELS, CountedStep, count_step

_TERA = 1e12
_DECODE = 10.5 * _TERA  # operations for each megapixel; 11.7 for Qwen-Image's decoder


@dataclass(frozen=True)
class Gpu:
    """A GPU's dense bf16 operations and bytes a second, by its maker's data sheet."""

    flops: float
    bandwidth: float


GPUS = {"H100": Gpu(989e12, 3.35e12), "H200": Gpu(989e12, 4.8e12), "H800": Gpu(989e12, 3.35e12)}
"""The SXM versions. An H800 is an H100 with slower links to other GPUs."""


@dataclass(frozen=True)
class Efficiency:
    """The parts of a GPU's peaks that kernels reach, and the seconds that launching one adds."""

    products: float
    attention: float
    memory: float
    launch: float


KERNELS = Efficiency(products=0.75, attention=0.65, memory=0.9, launch=2e-6)
"""Of kernels alone. Products: 740 TFLOP/s, a little less than the best of searches over shapes on an H100,
780 to 795 (Chillee's gist 2ec89696, stas00/ml-engineering). Attention: FlashAttention-3 over 4,096 tokens,
with heads of 128: 640 TFLOP/s (arXiv:2407.08608, figure 5). Memory and launches: assumed."""
SERVED = Efficiency(products=0.40, attention=0.65, memory=0.9, launch=2e-6)
"""Of a whole program: see above."""


@dataclass(frozen=True)
class Drawing:
    """How a model draws: the steps of an image, and the operations of encoding its texts."""

    model: str
    steps: int
    encoding: float


def drawing(model: str, steps: int, parameters: float) -> Drawing:
    """Return how a model draws whose text encoder runs so many parameters for each token."""
    return Drawing(model, steps, 2 * parameters * sum(MODELS[model].prompts))


SCHNELL = drawing("FLUX.1-schnell", 4, 4.8e9)
KLEIN = drawing("FLUX.2-klein-4B", 4, 3.1e9)
TURBO = drawing("Z-Image-Turbo", 8, 3.9e9)
Z_IMAGE = drawing("Z-Image, guided", 50, 3.9e9)
QWEN_IMAGE = drawing("Qwen-Image, guided", 50, 7.6e9)
DRAWINGS = (SCHNELL, KLEIN, TURBO, Z_IMAGE, QWEN_IMAGE)


@dataclass(frozen=True)
class Published:
    """Seconds an image that somebody else measured, on one GPU."""

    drawing: Drawing
    gpu: str
    side: int
    images: int
    seconds: float
    source: str


_VLLM_OMNI = "vllm-omni#4994, FlashAttention-3, compiled"
PUBLISHED = (
    Published(TURBO, "H800", 1024, 1, 1 / 0.86, _VLLM_OMNI),
    Published(TURBO, "H800", 512, 1, 1 / 3.07, _VLLM_OMNI),
    Published(TURBO, "H800", 1024, 2, 1 / 0.93, _VLLM_OMNI),
    Published(TURBO, "H800", 512, 2, 1 / 3.79, _VLLM_OMNI),
    Published(KLEIN, "H100", 1024, 1, 0.57, "inferencebench.io"),
    Published(KLEIN, "H100", 512, 1, 0.19, "inferencebench.io"),
    Published(QWEN_IMAGE, "H100", 1024, 1, 18.5, "cache-dit, guidance not told"),
)


def step_seconds(step: CountedStep, gpu: Gpu, efficiency: Efficiency) -> float:
    """Return the seconds of a counted step."""
    attention = step.attention_flops / (gpu.flops * efficiency.attention)
    kernels = (_seconds(name, work, gpu, efficiency) for name, work in step.kernels.calls)
    return attention + sum(kernels)


def image_seconds(
    drawing: Drawing, step: CountedStep, images: int, megapixels: float, gpu: Gpu, efficiency: Efficiency
) -> float:
    """Return the seconds of an image of so many pixels, of which a step has so many."""
    around = (drawing.encoding + megapixels * _DECODE) / (gpu.flops * efficiency.products)
    return drawing.steps * step_seconds(step, gpu, efficiency) / images + around


def predicted_rows(alone: Mapping[str, CountedStep]) -> list[dict[str, str]]:
    """Return images a minute of 1024×1024, one at a time; `alone` are the steps by model."""
    return [_predicted_row(each, alone[each.model]) for each in DRAWINGS]


def published_rows(published: Sequence[Published]) -> list[dict[str, str]]:
    """Return published seconds an image beside the predicted ones."""
    return [_published_row(each) for each in published]


def _seconds(name: str, work: Work, gpu: Gpu, efficiency: Efficiency) -> float:
    moving = work.bytes / (gpu.bandwidth * efficiency.memory)
    computing = work.flops / (gpu.flops * efficiency.products)
    # Attention's operations are not in its work, and take longer than its bytes.
    return efficiency.launch + (0.0 if kind_of(name) == "attention" else max(computing, moving))


def _predicted_row(drawing: Drawing, step: CountedStep) -> dict[str, str]:
    row = {"model": drawing.model, "steps": str(drawing.steps)}
    for name in ("H100", "H200"):
        seconds = [
            image_seconds(drawing, step, 1, (1024 / 1000) ** 2, GPUS[name], each)
            for each in (SERVED, KERNELS)
        ]
        low, high = (60 / each for each in seconds)
        row[f"{name}, images a minute"] = f"{low:.3g} to {high:.3g}"
    return row


def _published_row(published: Published) -> dict[str, str]:
    drawing, side, images = published.drawing, published.side, published.images
    grid = Grid(side // 16, side // 16)
    step = count_step(MODELS[drawing.model], MODELS[drawing.model].shapes(images, grid))
    served, kernels = (
        image_seconds(drawing, step, images, (side / 1000) ** 2, GPUS[published.gpu], each)
        for each in (SERVED, KERNELS)
    )
    return {
        "model": drawing.model,
        "steps": str(drawing.steps),
        "GPU": published.gpu,
        "image": f"{side}×{side}" + (f", {images} a step" if images > 1 else ""),
        "published": f"{published.seconds:.2f} s",
        "*predicted*": f"{kernels:.2f} to {served:.2f} s",
        "source": published.source,
    }

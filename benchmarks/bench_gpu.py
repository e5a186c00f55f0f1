"""A GPU and FLUX.1-schnell's size: parity with diffusers, images a minute, memory, share of the ceiling.

    python benchmarks/bench_gpu.py                # needs a GPU with 40 GB, 30 GB of memory and of disk
    python benchmarks/bench_gpu.py --pretend      # a tiny model on a pretended GPU, to see that it works

Weights are random, which cost what trained ones cost; text encoders are tiny, as prompts that come again are
not encoded again. Images are drawn at 1360×768 in 4 steps, several at a time, by the whole engine: as it is,
with the transformer's blocks compiled by `torch.compile`, and with products in fp8. Parity is that of the
bundled model. Nothing else should run on the machine.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from bench_report import RESULTS, markdown_table, read_conditions, write_report
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.bundled import bundled_models
from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.flux.transformer import FluxTransformer
from diffuserve.models.folder import first_line
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.testing.checkpoints import redraw_weights, save_module, write_flux_checkpoint
from diffuserve.testing.pretend_cuda import pretend_cuda

FOLDER = Path(__file__).parents[1] / "out" / "bench_gpu"
CUDA = torch.device("cuda:0")
SAMPLE = GenerationParams(
    prompt="a red circle", width=192, height=128, seed=1, num_inference_steps=4, max_sequence_length=32
)
_NEEDS_GPU = "bench-gpu needs a GPU with CUDA, and torch finds none on this machine"
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_TEXT_TOKENS = 256
_GIB, _TERA = 2**30, 1e12


@dataclass(frozen=True)
class Size:
    """A model's shapes, its images, and the side of the largest product."""

    name: str
    transformer: Mapping[str, Any]
    autoencoder: Mapping[str, Any]
    width: int
    height: int
    num_images: int
    product_side: int


FLUX_1 = Size(
    name="flux-12b",
    transformer={
        "num_layers": 19,
        "num_single_layers": 38,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "axes_dims_rope": [16, 56, 56],
    },
    autoencoder={
        "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "sample_size": 1024,
    },
    width=1360,
    height=768,
    num_images=16,
    product_side=8192,
)
TINY = Size("tiny", {"num_layers": 1}, {}, width=64, height=32, num_images=2, product_side=64)


def main() -> None:
    options = parse_arguments()
    if not (options.pretend or torch.cuda.is_available()):
        print(_NEEDS_GPU, file=sys.stderr)
        sys.exit(2)
    size = TINY if options.pretend else FLUX_1
    stock = stock_image("cpu" if options.pretend else "cuda")
    with pretend_cuda() if options.pretend else nullcontext():
        parity = measure_parity(stock)
        ceiling = matmul_ceiling(size.product_side)
        model = write_model(FOLDER / size.name, size)
        ways = (as_it_is, in_fp8) if options.pretend else (as_it_is, compiled, in_fp8)
        rows = [attempt(way, model, size, ceiling) for way in ways]
        report(options, parity, ceiling, rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="gpu", help="names the result files: gpu_LABEL_DATE")
    parser.add_argument("--pretend", action="store_true", help="a tiny model, no GPU; write nothing")
    return parser.parse_args()


def report(
    options: argparse.Namespace,
    parity: Mapping[str, float],
    ceiling: float,
    rows: Sequence[Mapping[str, str]],
) -> None:
    decibels = [{"dtype": dtype, "PSNR dB": f"{value:.1f}"} for dtype, value in parity.items()]
    text = "\n\n".join(
        [
            markdown_table("Parity: the bundled model beside diffusers' pipeline in float32", decibels),
            markdown_table("Speed and memory", rows),
            f"The ceiling is a product of matrices in bf16 on {torch.cuda.get_device_name()}: "
            f"{ceiling / _TERA:.3g} TFLOP/s.",
        ]
    )
    print(text)
    if not options.pretend:
        content = {"parity": parity, "ceiling_flops": ceiling, "rows": rows}
        conditions = {"gpu": torch.cuda.get_device_name(), **read_conditions(["torch", "diffusers"])}
        write_report(RESULTS / f"gpu_{options.label}", content, text, conditions)


def measure_parity(stock: Image.Image) -> dict[str, float]:
    """Return, by the engine's dtype, how near its image on CUDA comes to that of diffusers in float32."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        with Engine.load("tiny-flux", device="cuda", dtype=dtype) as engine:
            found[dtype] = psnr(engine.generate(SAMPLE).images[0], stock)
    return found


def stock_image(device: str) -> Image.Image:
    """Return what diffusers' own pipeline draws, in float32."""
    from diffusers import FluxPipeline

    pipeline: Any = FluxPipeline.from_pretrained(
        bundled_models()["tiny-flux"], dtype=torch.float32, local_files_only=True, trust_remote_code=False
    ).to(device)
    pipeline.set_progress_bar_config(disable=True)
    images: list[Image.Image] = pipeline(
        SAMPLE.prompt,
        width=SAMPLE.width,
        height=SAMPLE.height,
        num_inference_steps=SAMPLE.num_inference_steps,
        max_sequence_length=SAMPLE.max_sequence_length,
        generator=torch.Generator("cpu").manual_seed(SAMPLE.seed or 0),
    ).images
    return images[0]


def psnr(left: Image.Image, right: Image.Image) -> float:
    first, second = (np.asarray(image, dtype=float) for image in (left, right))
    return float(10 * np.log10(255**2 / max(float(np.mean((first - second) ** 2)), 1e-12)))


def matmul_ceiling(side: int, repeats: int = 20) -> float:
    """Return the operations a second of a large product in bf16, the fastest of several runs."""
    left, right = (torch.randn(side, side, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    quickest = math.inf
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            left @ right
        torch.cuda.synchronize()
        quickest = min(quickest, (time.perf_counter() - start) / repeats)
    return 2 * side**3 / quickest


def write_model(folder: Path, size: Size) -> Path:
    """Write a checkpoint of these shapes with random weights, unless an earlier run has."""
    if (folder / "transformer" / _WEIGHTS).exists():
        return folder
    write_flux_checkpoint(folder, dtype=torch.bfloat16)
    write_autoencoder(folder / "vae", size.autoencoder)
    write_transformer(folder / "transformer", size.transformer)
    return folder


def write_autoencoder(folder: Path, values: Mapping[str, Any]) -> None:
    from diffusers import AutoencoderKL

    autoencoder = AutoencoderKL.from_config({**json.loads((folder / "config.json").read_text()), **values})
    redraw_weights(autoencoder, torch.Generator().manual_seed(0))
    save_module(autoencoder.to(torch.bfloat16), folder)


def write_transformer(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the transformer's file last; its tensors are drawn on the GPU, where that takes seconds."""
    config = {**json.loads((folder / "config.json").read_text()), **values}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / _WEIGHTS).unlink()
    kernel = choose_kernel(CUDA, torch.bfloat16, deterministic=False)
    with torch.device("meta"):
        transformer = FluxTransformer(FluxConfig.from_dict(config), kernel)
    shapes = {name: parameter.shape for name, parameter in transformer.named_parameters()}
    tensors = {}
    for name, place in transformer.placements().items():
        rows, *others = shapes[place.parameter]
        tensors[name] = draw(name, (rows // place.num_parts, *others)).cpu()
    save_file(tensors, folder / _WEIGHTS)


def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    noise = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
    if len(shape) > 1:
        return noise / math.sqrt(math.prod(shape[1:]))
    return 0.1 * noise + float("norm" in name and name.endswith("weight"))


@contextmanager
def as_it_is(model: Path) -> Iterator[Engine]:
    with Engine.load(model, device="cuda", dtype="bfloat16") as engine:
        yield engine


@contextmanager
def compiled(model: Path) -> Iterator[Engine]:
    with as_it_is(model) as engine:
        transformer: Any = engine.pipeline.transformer  # type: ignore[attr-defined]
        for block in (*transformer.transformer_blocks, *transformer.single_transformer_blocks):
            block.compile(dynamic=True)
        yield engine


@contextmanager
def in_fp8(model: Path) -> Iterator[Engine]:
    with Engine.load(model, device="cuda", dtype="bfloat16", quantization="fp8") as engine:
        yield engine


Way = Callable[[Path], Any]


def attempt(way: Way, model: Path, size: Size, ceiling: float) -> dict[str, str]:
    """Return a way's row of figures, or why there are none: the others are measured nevertheless."""
    name = way.__name__.replace("_", " ")
    try:
        return {"engine": name, **measure(way, model, size, ceiling)}
    except Exception as error:
        return {"engine": name, "images a minute": f"failed: {type(error).__name__}: {first_line(error)}"}


def measure(way: Way, model: Path, size: Size, ceiling: float) -> dict[str, str]:
    with way(model) as engine:
        draw_images(engine, size, count=2)  # kernels are chosen, and built
        torch.cuda.reset_peak_memory_stats()
        steps, stepping = engine.stats.num_request_steps, engine.stats.denoise_seconds
        seconds = draw_images(engine, size, size.num_images)
        steps = engine.stats.num_request_steps - steps
        stepping = engine.stats.denoise_seconds - stepping
        operations = steps * step_operations(engine, size)
    return {
        "images a minute": f"{60 * size.num_images / seconds:.1f}",
        "ms a step of an image": f"{1_000 * stepping / steps:.1f}",
        "share of the ceiling": f"{operations / stepping / ceiling:.2f}",
        "peak GiB": f"{torch.cuda.max_memory_allocated() / _GIB:.1f}",
    }


def draw_images(engine: Engine, size: Size, count: int) -> float:
    """Return the seconds in which the engine draws images of one prompt, all asked for at once."""
    requests = [
        GenerationParams(
            prompt="a red circle",
            width=size.width,
            height=size.height,
            num_inference_steps=4,
            max_sequence_length=_TEXT_TOKENS,
            seed=seed,
        )
        for seed in range(count)
    ]
    start = time.perf_counter()
    engine.generate(requests)
    return time.perf_counter() - start


def step_operations(engine: Engine, size: Size) -> float:
    """Return the operations of one image's part of a step: products and attention."""
    config: FluxConfig = engine.pipeline.transformer.config  # type: ignore[attr-defined]
    tokens = _TEXT_TOKENS + size.width * size.height // engine.spec.pixels_per_token
    return float(config.token_operations * tokens + config.pair_operations * tokens**2)


if __name__ == "__main__":
    main()

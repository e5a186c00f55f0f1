"""Stages `parity` and `invariance`: images beside diffusers', and of requests alone beside those in a batch.

Both sides have one dtype: torch before 2.13 draws other noise in bf16 than in float32 from one seed, which
makes another picture.
"""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from benchmarks.gpu.stages.families import FAMILIES, Family, min_psnr, stock_frames
from benchmarks.gpu.stages.finding import DTYPES, Finding, Findings, Setting
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.bundled import bundled_models

MIN_PSNR = {"float32": 50.0, "bfloat16": 30.0}
"""Decibels that must be reached: in bf16 two right ways to round differ by about as much as these allow."""
_TINY_FLUX = Family(
    lambda _folder: bundled_models()["tiny-flux"],
    [
        GenerationParams(
            prompt="a red circle",
            width=192,
            height=128,
            seed=1,
            num_inference_steps=4,
            guidance_scale=0.0,
            max_sequence_length=32,
        )
    ],
)


def parity(setting: Setting) -> Findings:
    for name, family in {"tiny-flux": _TINY_FLUX, **FAMILIES}.items():
        folder = family.write(setting.folder / "families" / name)
        for dtype in MIN_PSNR:
            try:
                yield _beside_diffusers(setting, f"{name}, {dtype}", folder, family.requests, dtype)
            except Exception as error:
                yield Finding.failure(f"{name}, {dtype}", error)


def _beside_diffusers(
    setting: Setting, what: str, folder: Path, requests: Sequence[GenerationParams], dtype: str
) -> Finding:
    stock = stock_frames(folder, requests, DTYPES[dtype], setting.reference_device)
    with setting.cuda(), Engine.load(folder, device="cuda", dtype=dtype) as engine:
        return _decibels(what, drawn(engine, requests), stock, dtype)


def invariance(setting: Setting) -> Findings:
    for name in ("FLUX.1-dev", "SDXL", "Wan 2.1"):
        folder = FAMILIES[name].write(setting.folder / "families" / name)
        for dtype in MIN_PSNR:
            try:
                yield _alone_and_together(setting, f"{name}, {dtype}", folder, FAMILIES[name].requests, dtype)
            except Exception as error:
                yield Finding.failure(f"{name}, {dtype}", error)


def _alone_and_together(
    setting: Setting, what: str, folder: Path, requests: Sequence[GenerationParams], dtype: str
) -> Finding:
    with setting.cuda(), Engine.load(folder, device="cuda", dtype=dtype) as engine:
        alone = [frames for request in requests for frames in drawn(engine, [request])]
        return _decibels(what, drawn(engine, requests), alone, dtype)


def drawn(engine: Engine, requests: Sequence[GenerationParams]) -> list[list[Image.Image]]:
    """Return the frames of requests of one image each, which share steps."""
    return [list(result.frames[0]) for result in engine.generate(list(requests))]


def _decibels(
    what: str, left: Sequence[Sequence[Image.Image]], right: Sequence[Sequence[Image.Image]], dtype: str
) -> Finding:
    found = round(min_psnr(left, right), 1)
    return Finding(f"{what}, dB", found, ok=found >= MIN_PSNR[dtype])

"""A small model, and requests of it."""

from typing import Any

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams

SPEC = ModelSpec(
    name="small",
    family="flux",
    width=128,
    height=96,
    num_inference_steps=4,
    max_sequence_length=32,
    longest_sequence_length=64,
    min_size=32,
    max_size=512,
    max_pixels=256 * 256,
    max_images=4,
)


def resolve(spec: ModelSpec = SPEC, drawn_seed: int = 7, **values: Any) -> GenerationParams:
    return spec.resolve(GenerationParams(prompt="a star", **values), drawn_seed)


def image(width: int = 128, height: int = 96) -> InputImage:
    return InputImage("i", width, height)

"""Images of quantized weights are close to those of the model's own, and depend on no neighbors."""

import random

import numpy as np
import pytest

from diffuserve import Engine, EngineConfig, GenerationParams
from diffuserve.domain.errors import CheckpointUnusable
from diffuserve.domain.models.quantization import Quantization
from diffuserve.engine_process.output.image_output import ImageOutput
from scenes import caption, draw_scene

NONE, INT8, FP8, INT4 = Quantization
NUM_PROMPTS = 48


def held_out_prompts(count: int) -> list[str]:
    """Return captions of scenes that the model was not trained on, with one object and with two in turn."""
    chance = random.Random("held out")
    scenes = [draw_scene(chance, num_things=1 + index % 2, held_out=True) for index in range(count)]
    return [caption(scene, random.Random(index)) for index, scene in enumerate(scenes)]


PROMPTS = held_out_prompts(NUM_PROMPTS)
MIN_MEAN, MIN_P10 = 45.0, 40.0  # decibels, of 8 bits
MIN_IN_4_BITS = 25.0
_MAX_DECIBELS = 100.0


def requests(prompts: list[str]) -> list[GenerationParams]:
    return [GenerationParams(prompt=prompt, seed=seed) for seed, prompt in enumerate(prompts)]


def draw(quantization: Quantization, prompts: list[str] = PROMPTS) -> list[np.ndarray]:
    with Engine.load(device="cpu", dtype="bfloat16", quantization=quantization) as engine:
        assert engine.describe().get("quantization", "none") == quantization
        return [np.asarray(result.images[0], np.float64) for result in engine.generate(requests(prompts))]


def decibels(image: np.ndarray, other: np.ndarray) -> float:
    error = float(np.square(image - other).mean())
    return min(_MAX_DECIBELS, 10 * np.log10(255**2 / error)) if error else _MAX_DECIBELS


@pytest.fixture(scope="module")
def own_images() -> list[np.ndarray]:
    """Draw each prompt with the model's own weights, in bf16."""
    return draw(NONE)


@pytest.mark.parametrize("kind", [INT8, pytest.param(FP8, marks=pytest.mark.slow)])
def test_images_of_8_bits_are_those_of_the_own_weights_to_the_eye(
    own_images: list[np.ndarray], kind: Quantization
) -> None:
    found = [decibels(*pair) for pair in zip(draw(kind), own_images, strict=True)]
    assert float(np.mean(found)) >= MIN_MEAN
    assert float(np.percentile(found, 10)) >= MIN_P10
    assert max(found) < _MAX_DECIBELS, "nothing was quantized"


def test_images_of_4_bits_are_like_those_of_the_own_weights(own_images: list[np.ndarray]) -> None:
    found = [decibels(*pair) for pair in zip(draw(INT4, PROMPTS[:8]), own_images, strict=False)]
    assert MIN_IN_4_BITS <= float(np.mean(found)) < MIN_MEAN


@pytest.mark.parametrize("kind", [INT8, FP8, INT4])
def test_a_quantized_image_is_the_same_to_the_bit_alone_and_among_others(kind: Quantization) -> None:
    config = EngineConfig(deterministic=True)
    wanted = GenerationParams(prompt="a red circle", width=64, height=96, num_inference_steps=2, seed=1)
    others = requests(["a blue star", "a green ring on a black background"])
    with Engine.load(device="cpu", dtype="bfloat16", config=config, quantization=kind) as engine:
        alone = engine.generate(wanted).images[0]
        together, *_ = engine.generate([wanted, *others])
    assert alone.tobytes() == together.images[0].tobytes()


def test_a_checkpoint_goes_on_with_the_same_numbers_alone() -> None:
    wanted = GenerationParams(prompt="a red circle", num_inference_steps=4, seed=1)
    with Engine.load(device="cpu", quantization=INT8) as engine:
        request_id = engine.add(wanted)
        engine.step()
        checkpoint = engine.checkpoint(request_id)
        engine.add(wanted, resume=checkpoint)
    with Engine.load(device="cpu") as own, pytest.raises(CheckpointUnusable, match="weights"):
        own.add(wanted, resume=checkpoint)


def test_a_file_tells_what_its_weights_were_kept_in() -> None:
    params = GenerationParams(prompt="a red circle", seed=1)
    plain = ImageOutput(None, "tiny-flux").origin(params, 0)
    quantized = ImageOutput(None, "tiny-flux", quantization=FP8).origin(params, 0)
    assert "quantization" not in plain
    assert quantized == {**plain, "quantization": "fp8"}

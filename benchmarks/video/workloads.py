"""The checkpoint of the benchmark of clips, and its requests, which are generated from a seed."""

import json
import random
from dataclasses import dataclass

from benchmarks.shared import workloads
from benchmarks.shared.places import OUT
from diffuserve.domain.requests.params import GenerationParams

CHECKPOINT = OUT / "bench_video" / "random-wan"
TEXT_TOKENS = 32
_SETTINGS = {
    "width": 96,
    "height": 96,
    "num_frames": 17,
    "fps": 8,
    "num_inference_steps": 4,
    "guidance_scale": 1.0,
    "max_sequence_length": TEXT_TOKENS,
    "vae_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Shape:
    """The size of a request: a clip, or an image if it has a single frame."""

    num_frames: int
    width: int
    height: int
    steps: int

    def __str__(self) -> str:
        what = f"clip of {self.num_frames} frames" if self.num_frames > 1 else "image"
        return f"{what}, {self.width}x{self.height}, {self.steps} steps"

    def request(self, seed: int) -> GenerationParams:
        """Return a request of this size, whose prompt no other seed has."""
        words = random.Random(seed)
        return GenerationParams(
            prompt=f"{workloads.prompt(words)} moves by {words.random():.6f}",
            width=self.width,
            height=self.height,
            num_frames=self.num_frames,
            num_inference_steps=self.steps,
            guidance_scale=1.0,
            seed=words.randrange(2**31),
            max_sequence_length=TEXT_TOKENS,
        )


CLIP = Shape(num_frames=17, width=96, height=96, steps=4)


def equal(shape: Shape, count: int, seed: int) -> list[GenerationParams]:
    return [shape.request(seed * count + index) for index in range(count)]


def mixed(count: int, seed: int) -> list[GenerationParams]:
    """Return clips and images; the seed changes prompts and noise, but no shapes."""
    shapes = random.Random("shapes")
    return [_any_shape(shapes).request(seed * count + index) for index in range(count)]


def _any_shape(shapes: random.Random) -> Shape:
    return Shape(
        num_frames=shapes.choice((1, 5, 9, 17)),
        width=16 * shapes.randint(4, 8),
        height=16 * shapes.randint(4, 8),
        steps=shapes.randint(2, 8),
    )


def write_checkpoint() -> None:
    """Write the checkpoint unless an earlier run has done so: random weights, 8 M of them."""
    import torch

    from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

    if not (CHECKPOINT / "diffuserve.json").is_file():
        write_wan_checkpoint(
            CHECKPOINT,
            kind="tiny",
            dtype=torch.bfloat16,
            vae={"base_dim": 32},
            num_attention_heads=6,
            attention_head_dim=32,
            ffn_dim=768,
            num_layers=8,
            text_dim=128,
            freq_dim=128,
        )
        (CHECKPOINT / "diffuserve.json").write_text(json.dumps(_SETTINGS, indent=2) + "\n", "utf-8")

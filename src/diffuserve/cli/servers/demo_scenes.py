"""The scenes of the demo, model by model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.jobs.job import IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams

_FIRST_SEED = 7


@dataclass(frozen=True)
class Scene:
    """A job of the demo. `edits` is the number of an earlier scene whose image it starts from.

    Without a `seed` each scene has one of its own. A clip has the size and the length that its model knows.
    """

    prompt: str
    width: int | None = 128
    height: int | None = 128
    num_inference_steps: int | None = None
    negative_prompt: str | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    edits: int | None = None
    strength: float | None = None
    adapter: str | None = None
    kind: str = IMAGE_GENERATE

    def params(self, number: int, images: Mapping[int, Path]) -> GenerationParams:
        """Return the request of scene `number`; `images` are the files of earlier scenes by theirs."""
        return GenerationParams(
            prompt=self.prompt,
            negative_prompt=self.negative_prompt,
            width=self.width,
            height=self.height,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            seed=_FIRST_SEED + number if self.seed is None else self.seed,
            image=None if self.edits is None else str(images[self.edits]),
            strength=self.strength,
            adapters=None if self.adapter is None else (AdapterUse(self.adapter),),
        )


def _clip(prompt: str, edits: int | None = None, seed: int | None = None) -> Scene:
    return Scene(prompt, width=None, height=None, edits=edits, seed=seed, kind=VIDEO_GENERATE)


SCENES: Mapping[str, Sequence[Scene]] = {
    "tiny-flux": (
        Scene("a large red circle on a white background", 128, 128, 6),
        Scene("a large blue star on a yellow background", 128, 128, 8),
        Scene("a green triangle on a black background", 112, 112, 4),
        Scene("a small yellow circle at the top left on a blue background", 128, 128, 6),
        Scene("a large purple ring on a white background", 128, 128, 5),
        Scene("a large pink heart on a white background", 144, 144, 4),
        Scene("an orange square on a cyan background", 96, 96, 2),
        Scene("a cyan diamond on a purple background", 128, 128, 3),
        Scene("a green square left of a pink ring on a white background", 128, 112, 8),
        Scene("a large white cross on a red background", 112, 112, 4),
        Scene("a large brown square on a pink background", 96, 96, 2),
        Scene("a large black star on an orange background", 192, 128, 4),
        Scene("a large copper moon on a white background", seed=3),
        Scene("a large copper moon on a white background", seed=3, adapter="copper-moon"),
    ),
    "tiny-sd": (
        Scene("a large heart on a white background", seed=4),
        Scene("a large heart on a white background", negative_prompt="red", guidance_scale=4.0, seed=4),
        Scene("a large green circle on a white background", edits=0, strength=0.8),
    ),
    "tiny-video": (
        _clip("a blue star moves right on a white background"),
        _clip("the orange square rotates", edits=6),
    ),
}
"""By model; scenes are counted from 0, across the models. Jobs of one model run together."""

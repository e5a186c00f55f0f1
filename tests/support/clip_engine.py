"""A pipeline of clips that notes its turns, its requests, and what an engine makes of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import StepOutput
from diffuserve.models.frames import Frames, Sound
from diffuserve.testing.fake_pipeline import FAKE_SPEC, FakePipeline

SPEC = replace(FAKE_SPEC, temporal_stride=4, max_frames=81)


class WatchedPipeline(FakePipeline):
    """Counts the decodings of clips that are open: neither at their end nor closed."""

    num_open = 0

    def decode_chunks(self, latents: Tensor, params: GenerationParams) -> Iterator[Frames | Sound]:
        self.num_open += 1
        try:
            yield from super().decode_chunks(latents, params)
        finally:
            self.num_open -= 1


def clip(prompt: str = "a clip", num_frames: int = 17, **values: Any) -> GenerationParams:
    given: dict[str, Any] = {"width": 32, "height": 32, "num_inference_steps": 1, "seed": 1} | values
    return GenerationParams(prompt=prompt, num_frames=num_frames, **given)


def image(prompt: str = "an image", **values: Any) -> GenerationParams:
    return clip(prompt, 1, **values)


def drain(engine: Engine) -> list[StepOutput]:
    outputs = []
    while step := engine.step():
        outputs += step
    return outputs

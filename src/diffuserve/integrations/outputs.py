"""Drawn requests as other servers return them: image files, and what belongs to each."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffuserve.api.submit.file_formats import file_format
from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.jobs.job import IMAGE_GENERATE
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.integrations.engine import InProcessEngine
from diffuserve.integrations.requests import FORMAT, params_of, said_as
from diffuserve.media.image_file import image_bytes


@dataclass(frozen=True)
class DrawnImages:
    """The images of a request that the image filter let out, and the format that it wants their files in."""

    result: GenerationResult
    output: ImageOutput
    file_format: str

    def files(self) -> list[bytes]:
        """Return the image files, with the parameters in each unless a setting says otherwise."""
        return [
            image_bytes(image, self.file_format, self.output.origin(self.result.params, index))
            for index, image in enumerate(self.result.images)
        ]

    @property
    def seeds(self) -> list[int]:
        """The seed of each image."""
        return [self.output.seed_of(self.result, index) for index in range(len(self.result.images))]


async def drawn(host: InProcessEngine, values: Mapping[str, Any]) -> DrawnImages:
    """Draw a request of values by the names of parameters, with `FORMAT` among them if it likes.

    Raise `InvalidParams` for bad values, `BacklogFull`, and what `InProcessEngine.draw` raises.
    """
    asked = {name: value for name, value in values.items() if name != FORMAT}
    with host.place(), said_as(asked):
        params = await asyncio.to_thread(params_of, asked)
        chosen = file_format(IMAGE_GENERATE, values.get(FORMAT), params, host.engine.spec)
        return DrawnImages(await host.draw(params), host.output, chosen)


def check_draws_images(spec: ModelSpec) -> None:
    """Raise `InvalidModel` for a model of clips or sounds."""
    if spec.is_video or spec.is_audio:
        noun = "sounds" if spec.is_audio else "clips"
        raise InvalidModel(f"{spec.name} makes {noun}, and only images are drawn here; use diffuserve serve")

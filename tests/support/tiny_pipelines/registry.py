"""The random small pipelines by name: what each is made of, and what its calls are given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.tiny_pipelines import qwen_families, stable_diffusion_3, t5_families

Components = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class TinyPipeline:
    """A random small checkpoint of a pipeline class, and what a call of it takes.

    `call` are arguments that every call of the tiny one needs, by diffusers' names. `sizes` are (width, height),
    the default first. `pictures` names the arguments that take an input image.
    """

    class_name: str
    components: Components
    sizes: tuple[tuple[int, int], ...] = ((64, 64), (96, 64))
    guidance: str | None = "guidance_scale"
    takes_negative: bool = True
    frames: tuple[int, ...] = ()
    pictures: tuple[str, ...] = ()
    sound: bool = False
    call: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_clip(self) -> bool:
        """Whether a call returns frames."""
        return bool(self.frames)


TINY_PIPELINES: Mapping[str, TinyPipeline] = {
    "sd3": TinyPipeline("StableDiffusion3Pipeline", stable_diffusion_3.components),
    "sd3-img2img": TinyPipeline(
        "StableDiffusion3Img2ImgPipeline", stable_diffusion_3.components, pictures=("image",)
    ),
    "sd3-inpaint": TinyPipeline(
        "StableDiffusion3InpaintPipeline", stable_diffusion_3.components, pictures=("image", "mask_image")
    ),
    "sd3-controlnet": TinyPipeline(
        "StableDiffusion3ControlNetPipeline",
        stable_diffusion_3.with_controlnet,
        pictures=("control_image",),
    ),
    "z-image": TinyPipeline("ZImagePipeline", qwen_families.z_image),
    "qwen-image": TinyPipeline("QwenImagePipeline", qwen_families.qwen_image, guidance="true_cfg_scale"),
    "flux2-klein": TinyPipeline("Flux2KleinPipeline", qwen_families.klein, takes_negative=False),
    "pixart": TinyPipeline(
        "PixArtAlphaPipeline", t5_families.pixart, call={"use_resolution_binning": False}
    ),
    "ltx": TinyPipeline("LTXPipeline", t5_families.ltx, frames=(9, 17)),
}

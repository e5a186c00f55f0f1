"""The random small pipelines by name: what each is made of, and what its calls are given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class TinyPipeline:
    """A random small checkpoint of a pipeline class, and what a call of it takes.

    `maker` names the function of this package that makes its components: diffusers takes seconds to import.
    `call` are arguments that every call of the tiny one needs, by diffusers' names. `sizes` are (width,
    height), the default first. `pictures` names the arguments that take an input image. By `contrast` the
    last layer of an autoencoder that makes pale images is multiplied.
    """

    class_name: str
    maker: str
    sizes: tuple[tuple[int, int], ...] = ((64, 64), (96, 64))
    guidance: str | None = "guidance_scale"
    takes_negative: bool = True
    frames: tuple[int, ...] = ()
    frames_argument: str = "num_frames"
    pictures: tuple[str, ...] = ()
    sound: bool = False
    contrast: float = 1.0
    call: Mapping[str, Any] = field(default_factory=dict)

    def components(self) -> dict[str, Any]:
        """Return new components, whose weights are drawn by torch's global generator."""
        module, function = self.maker.split(".")
        made: dict[str, Any] = getattr(import_module(f"{__package__}.{module}"), function)()
        return made

    def field_of(self, argument: str) -> str:
        """Return the field of our requests whose image goes to an argument."""
        if "ControlNet" in self.class_name:
            return "control_image"
        return "mask" if argument == "mask_image" else argument

    @property
    def is_clip(self) -> bool:
        """True if a call returns frames."""
        return bool(self.frames)


_SMALL = ((32, 32), (64, 32))  # where a latent has few pixels

TINY_PIPELINES: Mapping[str, TinyPipeline] = {
    "sd3": TinyPipeline("StableDiffusion3Pipeline", "stable_diffusion_3.components"),
    "sd3-img2img": TinyPipeline(
        "StableDiffusion3Img2ImgPipeline", "stable_diffusion_3.components", pictures=("image",)
    ),
    "sd3-inpaint": TinyPipeline(
        "StableDiffusion3InpaintPipeline", "stable_diffusion_3.components", pictures=("image", "mask_image")
    ),
    "sd3-controlnet": TinyPipeline(
        "StableDiffusion3ControlNetPipeline",
        "stable_diffusion_3.with_controlnet",
        pictures=("control_image",),
    ),
    "z-image": TinyPipeline("ZImagePipeline", "qwen_families.z_image"),
    "qwen-image": TinyPipeline(
        "QwenImagePipeline", "qwen_families.qwen_image", guidance="true_cfg_scale", contrast=4
    ),
    "flux2-klein": TinyPipeline("Flux2KleinPipeline", "qwen_families.klein", takes_negative=False),
    "pixart": TinyPipeline(
        "PixArtAlphaPipeline", "t5_families.pixart", call={"use_resolution_binning": False}
    ),
    "ltx": TinyPipeline("LTXPipeline", "t5_families.ltx", sizes=_SMALL, frames=(9, 17)),
    "ltx-img2vid": TinyPipeline(
        "LTXImageToVideoPipeline", "t5_families.ltx", sizes=_SMALL, frames=(9, 17), pictures=("image",)
    ),
    "qwen-image-edit-plus": TinyPipeline(
        "QwenImageEditPlusPipeline",
        "qwen_families.qwen_image_edit_plus",
        sizes=((256, 256), (384, 256)),
        guidance="true_cfg_scale",
        contrast=2,
        pictures=("image",),
    ),
    "qwen-image-layered": TinyPipeline(
        "QwenImageLayeredPipeline",
        "qwen_families.qwen_image_layered",
        sizes=((640, 640), (896, 448)),
        guidance="true_cfg_scale",
        contrast=2,
        pictures=("image",),
    ),
    "flux2": TinyPipeline("Flux2Pipeline", "qwen_families.flux2", takes_negative=False),
    "pixart-sigma": TinyPipeline(
        "PixArtSigmaPipeline", "t5_families.pixart", call={"use_resolution_binning": False}
    ),
    "sana": TinyPipeline(
        "SanaPipeline", "gemma_families.sana", sizes=_SMALL, call={"use_resolution_binning": False}
    ),
    "ltx2": TinyPipeline(
        "LTX2Pipeline", "gemma_families.ltx2", frames=(9, 17), sound=True, call={"max_sequence_length": 64}
    ),
    "cogvideox": TinyPipeline("CogVideoXPipeline", "t5_families.cogvideox", frames=(9, 13)),
    "hunyuan-video-15": TinyPipeline(
        "HunyuanVideo15Pipeline",
        "qwen_families.hunyuan_video_15",
        frames=(5, 9),
        guidance=None,
        takes_negative=False,
    ),
    "chroma": TinyPipeline("ChromaPipeline", "t5_families.chroma"),
    "kandinsky5-image": TinyPipeline(
        "Kandinsky5T2IPipeline",
        "qwen_families.kandinsky5_image",
        sizes=((1024, 1024), (1408, 640)),  # of its own list: it takes the nearest to any other
    ),
    "kandinsky5-video": TinyPipeline(
        "Kandinsky5T2VPipeline", "qwen_families.kandinsky5_video", frames=(5, 9)
    ),
    "krea2": TinyPipeline("Krea2Pipeline", "qwen_families.krea2"),
    "longcat-image": TinyPipeline(
        "LongCatImagePipeline", "qwen_families.longcat_image", call={"enable_prompt_rewrite": False}
    ),
    "stable-audio": TinyPipeline(
        "StableAudioPipeline", "sound_families.stable_audio", sizes=(), sound=True, contrast=0.03
    ),
    "ace-step": TinyPipeline(
        "AceStepPipeline",
        "sound_families.ace_step",
        sizes=(),
        sound=True,
        takes_negative=False,
        call={"audio_duration": 1.0},
    ),
    "lumina2": TinyPipeline("Lumina2Pipeline", "more_images.lumina2"),
    "aura-flow": TinyPipeline("AuraFlowPipeline", "more_images.aura_flow"),
    "ovis-image": TinyPipeline("OvisImagePipeline", "more_images.ovis_image"),
    "hunyuan-image": TinyPipeline(
        "HunyuanImagePipeline",
        "more_images.hunyuan_image",
        guidance=None,  # read as `distilled_guidance_scale`
        takes_negative=False,
    ),
    "hidream": TinyPipeline("HiDreamImagePipeline", "more_images.hidream", sizes=((1024, 1024),)),
    "stable-diffusion": TinyPipeline("StableDiffusionPipeline", "more_images.stable_diffusion"),
    "stable-diffusion-controlnet": TinyPipeline(
        "StableDiffusionControlNetPipeline", "more_images.stable_diffusion_controlnet", pictures=("image",)
    ),
    "stable-diffusion-xl-controlnet": TinyPipeline(
        "StableDiffusionXLControlNetPipeline",
        "more_images.stable_diffusion_xl_controlnet",
        pictures=("image",),
    ),
    "sana-controlnet": TinyPipeline(
        "SanaControlNetPipeline",
        "gemma_families.sana_controlnet",
        sizes=_SMALL,
        pictures=("control_image",),
        call={"use_resolution_binning": False},
    ),
    "qwen-image-controlnet": TinyPipeline(
        "QwenImageControlNetPipeline",
        "qwen_families.qwen_image_controlnet",
        guidance="true_cfg_scale",
        contrast=4,
        pictures=("control_image",),
    ),
    "mochi": TinyPipeline("MochiPipeline", "more_clips.mochi", frames=(7, 13), contrast=0.5),
    "sana-video": TinyPipeline(
        "SanaVideoPipeline",
        "more_clips.sana_video",
        frames=(9, 13),
        frames_argument="frames",
        call={"use_resolution_binning": False},
    ),
    "wan": TinyPipeline("WanPipeline", "more_clips.wan", frames=(5, 9)),
    "hunyuan-video": TinyPipeline(
        "HunyuanVideoPipeline", "more_clips.hunyuan_video", frames=(5, 9), takes_negative=False
    ),
    "qwen-image-img2img": TinyPipeline(
        "QwenImageImg2ImgPipeline",
        "qwen_families.qwen_image",
        guidance="true_cfg_scale",
        contrast=2,
        pictures=("image",),
    ),
    "qwen-image-inpaint": TinyPipeline(
        "QwenImageInpaintPipeline",
        "qwen_families.qwen_image",
        guidance="true_cfg_scale",
        contrast=2,
        pictures=("image", "mask_image"),
    ),
    "z-image-img2img": TinyPipeline("ZImageImg2ImgPipeline", "qwen_families.z_image", pictures=("image",)),
    "z-image-inpaint": TinyPipeline(
        "ZImageInpaintPipeline", "qwen_families.z_image", pictures=("image", "mask_image")
    ),
    "chroma-img2img": TinyPipeline("ChromaImg2ImgPipeline", "t5_families.chroma", pictures=("image",)),
    "ltx2-img2vid": TinyPipeline(
        "LTX2ImageToVideoPipeline",
        "gemma_families.ltx2",
        frames=(9, 17),
        sound=True,
        pictures=("image",),
        call={"max_sequence_length": 64},
    ),
}

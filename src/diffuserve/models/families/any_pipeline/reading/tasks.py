"""What a pipeline class is for, by its signature, and why some classes cannot be served."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from diffuserve.models.families.any_pipeline.reading.signature import Signature


class Task(StrEnum):
    """What a pipeline makes of what."""

    TEXT_TO_IMAGE = "text to image"
    IMAGE_TO_IMAGE = "image to image"
    INPAINTING = "inpainting"
    EDITING = "editing"
    TEXT_TO_VIDEO = "text to video"
    IMAGE_TO_VIDEO = "image to video"
    CONTROL = "control image"
    VIDEO = "video in"
    SOUND = "sound"
    OTHER = "other"


IMAGES: Final = ("image", "images", "input_images", "reference_images", "cond_image")
"""Arguments for images to begin with or to refer to, in the order in which they are looked for."""
MASKS: Final = ("mask_image", "mask", "control_mask")
FRAMES: Final = ("num_frames", "video_length", "frames")
LAST_FRAMES: Final = ("last_image",)
RATES: Final = ("frame_rate", "fps")
DURATIONS: Final = ("audio_duration", "audio_length_in_s", "audio_duration_s", "duration", "audio_end_in_s")
CONTROL_TIMES: Final = ("control_guidance_start", "control_guidance_end")
CONTROL_SCALES: Final = ("controlnet_conditioning_scale", "adapter_conditioning_scale")

_GIVEN: Final = frozenset({"prompt", "image", "mask_image", "control_image", "height", "width", "num_frames"})
_EMBEDDINGS = "it makes embeddings for another pipeline, and no image; serve the combined model instead"
_UPSCALER = "it enlarges what another pipeline made"
_TEXT = "it writes text"
_ONNX = "it runs ONNX files, and weights are read from safetensors alone"
_OBJECTS = "it makes three-dimensional objects"
_SOUND_IN = "it works on a sound, which no request has"
_LAYERS = "it takes a picture apart into layers, which QwenImageLayeredPipeline does here"
_EDIT_WORDS = "its edits are told by arguments of its own"
EXCLUDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BlipDiffusionControlNetPipeline": _EDIT_WORDS,
        "DiffusionGemmaPipeline": _TEXT,
        "FluxPriorReduxPipeline": _EMBEDDINGS,
        "HunyuanImageRefinerPipeline": "it refines what another pipeline made",
        "IFImg2ImgSuperResolutionPipeline": _UPSCALER,
        "IFInpaintingSuperResolutionPipeline": _UPSCALER,
        "IFSuperResolutionPipeline": _UPSCALER,
        "KandinskyPriorPipeline": _EMBEDDINGS,
        "KandinskyV22PriorEmb2EmbPipeline": _EMBEDDINGS,
        "KandinskyV22PriorPipeline": _EMBEDDINGS,
        "Kandinsky6SRPipeline": _UPSCALER,
        "LDMSuperResolutionPipeline": _UPSCALER,
        "LLaDA2Pipeline": _TEXT,
        "LTX2LatentUpsamplePipeline": _UPSCALER,
        "LTXLatentUpsamplePipeline": _UPSCALER,
        "OnnxStableDiffusionImg2ImgPipeline": _ONNX,
        "OnnxStableDiffusionInpaintPipeline": _ONNX,
        "OnnxStableDiffusionPipeline": _ONNX,
        "OnnxStableDiffusionUpscalePipeline": _ONNX,
        "LTX2DFRTemporalRefinePipeline": _UPSCALER,
        "QwenImageLayeredModularPipeline": _LAYERS,
        "SanaWMPipeline": "it needs the path of a camera, which no request has",
        "ShapEImg2ImgPipeline": _OBJECTS,
        "ShapEPipeline": _OBJECTS,
        "StableAudio3AudioToAudioPipeline": _SOUND_IN,
        "StableAudio3InpaintPipeline": _SOUND_IN,
        "StableCascadePriorPipeline": _EMBEDDINGS,
        "StableDiffusionLatentUpscalePipeline": _UPSCALER,
        "StableDiffusionOnnxPipeline": _ONNX,
        "StableDiffusionUpscalePipeline": _UPSCALER,
    }
)
"""Classes that no request can ask for something useful, though their arguments look as if it could."""

DRAW_WITHOUT_IMAGE: Final = frozenset(
    {
        "BriaFibo2Pipeline",
        "Cosmos2_5_PredictBasePipeline",
        "Cosmos3OmniPipeline",
        "Flux2KleinKVPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "FluxKontextPipeline",
        "GlmImagePipeline",
        "HeliosPipeline",
        "HeliosPyramidPipeline",
        "JoyImageEditPipeline",
        "JoyImageEditPlusPipeline",
        "Kandinsky6TI2VAPipeline",
        "LTXConditionPipeline",
        "LTXI2VLongMultiPromptPipeline",
        "OmniGenPipeline",
        "QwenImage21Pipeline",
        "StableCascadeCombinedPipeline",
        "WanVACEPipeline",
        "ZImageOmniPipeline",
    }
)
"""Classes that take images and need none; of the others most say `image=None` too, and fail without one."""
SEVERAL_IMAGES: Final = frozenset(
    {
        "BriaFibo2Pipeline",
        "Flux2KleinKVPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "GlmImagePipeline",
        "JoyImageEditPlusPipeline",
        "OmniGenPipeline",
        "QwenImage21Pipeline",
        "QwenImageEditPlusPipeline",
        "StableCascadeCombinedPipeline",
        "WanVACEPipeline",
        "ZImageOmniPipeline",
    }
)
"""Classes that take several images as references."""

_SOUND_ROOMS = frozenset({"ace_step", "audioldm2", "longcat_audio_dit", "stable_audio", "stable_audio_3"})
_VIDEOS = ("video", "control_video", "conditioning_frames")


def room_of(signature: Signature) -> str:
    """Return the folder of diffusers that a class is in."""
    return signature.path.split("/")[1]


def image_argument(signature: Signature) -> str | None:
    """Return the argument for images to begin with or to refer to; `None` if a class has none."""
    named = signature.first(*IMAGES)
    if "control_mask" in signature.arguments:
        return "control_image"  # the image is filled in where this mask is white
    return None if named is not None and named == control_argument(signature) else named


def control_argument(signature: Signature) -> str | None:
    """Return the argument for an image that says where things are; `None` if a class has none."""
    takes, modules = signature.arguments, signature.components
    if "control_mask" in takes:
        return None
    if "control_image" in takes:
        return "control_image"
    return "image" if {"controlnet", "adapter"} & {*modules} and "image" in takes else None


def draws_without(signature: Signature, name: str) -> bool:
    """Return whether a class draws without an image that it takes."""
    return signature.may_lack(name, otherwise=signature.name in DRAW_WITHOUT_IMAGE)


def takes_several(signature: Signature, name: str) -> bool:
    """Return whether a class takes several images as references."""
    refers = "strength" not in signature.arguments and signature.first(*FRAMES) is None
    is_list = signature.is_modular and "list" in signature.annotations[name] and refers
    return is_list or signature.name in SEVERAL_IMAGES


def task_of(signature: Signature) -> Task:
    """Return what a class is for."""
    takes = signature.arguments
    image = image_argument(signature)
    if room_of(signature) in _SOUND_ROOMS or any("audio_length" in name for name in takes):
        return Task.SOUND
    if _needs_video(signature):
        return Task.VIDEO
    if control_argument(signature) is not None:
        return Task.CONTROL
    if signature.first(*FRAMES) is not None:
        return Task.TEXT_TO_VIDEO if image is None else Task.IMAGE_TO_VIDEO
    if signature.first(*MASKS):
        return Task.INPAINTING
    if image is not None:
        return Task.IMAGE_TO_IMAGE if "strength" in takes else Task.EDITING
    return Task.TEXT_TO_IMAGE


def why_not_served(signature: Signature) -> str:
    """Return why a class cannot be served; "" if it can be."""
    if (reason := EXCLUDED.get(signature.name)) is not None:
        return reason
    if "prompt" not in signature.arguments:
        return "it takes no prompt"
    lacking = sorted(signature.required - _GIVEN)
    if lacking:
        return f"it needs {', '.join(lacking)}, which no request has"
    if task_of(signature) is Task.VIDEO:
        return "it works on a video, which no request has"
    return ""


def _needs_video(signature: Signature) -> bool:
    """Return whether a class works on a video, and has no other way."""
    videos, has_length = signature.first(*_VIDEOS), signature.first(*FRAMES) is not None
    may_leave_it_out = videos == "video" and has_length and "strength" not in signature.arguments
    return videos is not None and image_argument(signature) is None and not may_leave_it_out


def makes_sound(signature: Signature) -> bool:
    """Return whether a class makes sound, by itself or with a clip."""
    parts = {"audio_vae", "vocoder"}
    return task_of(signature) is Task.SOUND or bool(parts & {*signature.components})

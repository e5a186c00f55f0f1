"""Classes of diffusers for which a test has shown what their runs may do."""

from collections.abc import Mapping
from typing import Any

SHARE_PASSES = frozenset(
    {
        "AceStepPipeline",
        "AuraFlowPipeline",
        "ChromaImg2ImgPipeline",
        "ChromaPipeline",
        "CogVideoXPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "HunyuanImagePipeline",
        "HunyuanVideo15Pipeline",
        "HunyuanVideoPipeline",
        "Kandinsky5T2IPipeline",
        "Kandinsky5T2VPipeline",
        "Krea2Pipeline",
        "LTX2ImageToVideoPipeline",
        "LTX2Pipeline",
        "LTXImageToVideoPipeline",
        "LTXPipeline",
        "LongCatImagePipeline",
        "Lumina2Pipeline",
        "MochiPipeline",
        "OvisImagePipeline",
        "PixArtAlphaPipeline",
        "PixArtSigmaPipeline",
        "QwenImageEditPlusPipeline",
        "QwenImageImg2ImgPipeline",
        "QwenImageInpaintPipeline",
        "QwenImagePipeline",
        "SanaPipeline",
        "SanaVideoPipeline",
        "StableAudioPipeline",
        "StableDiffusion3ControlNetPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "StableDiffusion3Pipeline",
        "StableDiffusionControlNetPipeline",
        "ZImageImg2ImgPipeline",
        "ZImageInpaintPipeline",
        "ZImagePipeline",
    }
)
"""Classes whose runs share passes; those of all others run one at a time."""

RESUME = frozenset(
    {
        "ChromaPipeline",
        "CogVideoXPipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "HunyuanVideo15Pipeline",
        "Kandinsky5T2IPipeline",
        "Kandinsky5T2VPipeline",
        "Krea2Pipeline",
        "LTXImageToVideoPipeline",
        "LTXPipeline",
        "LongCatImagePipeline",
        "PixArtAlphaPipeline",
        "PixArtSigmaPipeline",
        "QwenImageEditPlusPipeline",
        "QwenImagePipeline",
        "SanaPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "StableDiffusion3Pipeline",
        "ZImagePipeline",
    }
)
"""Classes whose loops keep nothing but what replay puts back: what is resumed equals the whole to the bit."""

RESUMING_SOLVERS = frozenset(
    {
        "CogVideoXDDIMScheduler",
        "CogVideoXDPMScheduler",
        "DDIMScheduler",
        "DDPMScheduler",
        "DEISMultistepScheduler",
        "DPMSolverMultistepScheduler",
        "DPMSolverSinglestepScheduler",
        "EulerAncestralDiscreteScheduler",
        "EulerDiscreteScheduler",
        "FlowMatchEulerDiscreteScheduler",
        "FlowMatchHeunDiscreteScheduler",
        "HeunDiscreteScheduler",
        "KDPM2AncestralDiscreteScheduler",
        "KDPM2DiscreteScheduler",
        "LCMScheduler",
        "PNDMScheduler",
        "TCDScheduler",
        "UniPCMultistepScheduler",
    }
)
"""Schedulers that keep a few tensors from step to step, and draw from the request's own generator."""

DRAWS_ITS_OWN = "stochastic_sampling"
"""The setting of a scheduler that draws noise, in pipelines that do not give it the request's generator."""


def may_resume(pipeline_class: str, schedulers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a class goes on from half-done work with these schedulers: their classes and configs."""
    are_proven = RESUMING_SOLVERS.issuperset(schedulers)
    return pipeline_class in RESUME and are_proven and not any(map(_draws_its_own, schedulers.values()))


def _draws_its_own(config: Mapping[str, Any]) -> bool:
    return bool(config.get(DRAWS_ITS_OWN))

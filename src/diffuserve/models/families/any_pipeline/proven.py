"""Classes of diffusers for which a test has shown what their runs may do."""

from collections.abc import Iterable

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
        "QwenImageControlNetPipeline",
        "QwenImageEditPlusPipeline",
        "QwenImageImg2ImgPipeline",
        "QwenImageInpaintPipeline",
        "QwenImagePipeline",
        "SanaControlNetPipeline",
        "SanaPipeline",
        "SanaVideoPipeline",
        "StableAudioPipeline",
        "StableDiffusion3ControlNetPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "StableDiffusion3Pipeline",
        "StableDiffusionControlNetPipeline",
        "StableDiffusionXLControlNetPipeline",
        "ZImageImg2ImgPipeline",
        "ZImageInpaintPipeline",
        "ZImagePipeline",
    }
)
"""Classes whose runs share passes; those of all others run one at a time."""

MIX_ADAPTERS = SHARE_PASSES - {"ZImageImg2ImgPipeline", "ZImageInpaintPipeline", "ZImagePipeline"}
"""Classes whose layers keep the rows of a pass apart: there requests of other adapters share passes, too.

Z-Image lays the sequences of a pass end to end, whatever their lengths.
"""

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
        "StableDiffusion3ControlNetPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "StableDiffusion3Pipeline",
        "ZImagePipeline",
    }
)
"""Classes whose loops keep nothing but what replay puts back: what is resumed equals the whole to the bit."""

OFFLOAD = frozenset(
    {
        "ChromaPipeline",
        "CogVideoXPipeline",
        "Flux2KleinPipeline",
        "LTXPipeline",
        "PixArtAlphaPipeline",
        "QwenImagePipeline",
        "SanaPipeline",
        "StableDiffusion3Pipeline",
        "ZImagePipeline",
    }
)
"""Classes that read no weights outside their models' passes, but an autoencoder's: others may wait."""

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
        "FlowMatchLCMScheduler",
        "HeunDiscreteScheduler",
        "KDPM2AncestralDiscreteScheduler",
        "KDPM2DiscreteScheduler",
        "LCMScheduler",
        "PNDMScheduler",
        "TCDScheduler",
        "UniPCMultistepScheduler",
    }
)
"""Schedulers that keep a few tensors from step to step, and draw from the request's seed."""


def may_resume(pipeline_class: str, schedulers: Iterable[str]) -> bool:
    """Return whether a class goes on from half-done work with schedulers of these classes."""
    return pipeline_class in RESUME and RESUMING_SOLVERS.issuperset(schedulers)

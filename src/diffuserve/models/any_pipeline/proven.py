"""Classes of diffusers for which a test has shown what their runs may do."""

from collections.abc import Iterable

SHARE_PASSES = frozenset(
    {
        "AceStepPipeline",
        "AuraFlowPipeline",
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
        "QwenImagePipeline",
        "SanaPipeline",
        "SanaVideoPipeline",
        "StableAudioPipeline",
        "StableDiffusion3ControlNetPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3InpaintPipeline",
        "StableDiffusion3Pipeline",
        "StableDiffusionControlNetPipeline",
        "ZImagePipeline",
    }
)
"""Classes whose runs share passes; those of all others run one at a time."""

RESUME = frozenset(
    {
        "ChromaPipeline",
        "CogVideoXPipeline",
        "Flux2KleinPipeline",
        "LTXPipeline",
        "PixArtAlphaPipeline",
        "QwenImagePipeline",
        "SanaPipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3Pipeline",
        "ZImagePipeline",
    }
)
"""Classes whose loops keep nothing but what replay puts back: resumed results are equal to the bit."""

RESUMING_SOLVERS = frozenset(
    {
        "DPMSolverMultistepScheduler",
        "EulerAncestralDiscreteScheduler",
        "FlowMatchEulerDiscreteScheduler",
        "LCMScheduler",
        "UniPCMultistepScheduler",
    }
)
"""Schedulers that keep tensors alone from step to step, and draw from the request's generator."""


def may_resume(pipeline_class: str, schedulers: Iterable[str]) -> bool:
    """Return whether a class goes on from half-done work with these schedulers."""
    return pipeline_class in RESUME and RESUMING_SOLVERS.issuperset(schedulers)

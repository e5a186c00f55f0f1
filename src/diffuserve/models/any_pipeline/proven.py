"""Classes of diffusers for which a test has shown what their runs may do."""

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

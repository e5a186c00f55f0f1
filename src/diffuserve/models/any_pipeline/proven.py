"""Classes of diffusers for which a test has shown what their runs may do."""

SHARE_PASSES = frozenset(
    {
        "CogVideoXPipeline",
        "Flux2KleinPipeline",
        "LTXPipeline",
        "PixArtAlphaPipeline",
        "QwenImagePipeline",
        "StableDiffusion3Img2ImgPipeline",
        "StableDiffusion3Pipeline",
        "ZImagePipeline",
    }
)
"""Classes whose runs share passes; those of all others run one at a time."""

"""Previews of Stable Diffusion's latents, by the maps that ComfyUI publishes (`latent_formats.py`)."""

from diffuserve.models.preview import PreviewMap

PREVIEW = PreviewMap(
    factors=(
        (0.3512, 0.2297, 0.3227),
        (0.3250, 0.4974, 0.2350),
        (-0.2829, 0.1762, 0.2721),
        (-0.2120, -0.2616, -0.7177),
    ),
    bias=(0.0, 0.0, 0.0),
)
XL_PREVIEW = PreviewMap(
    factors=(
        (0.3651, 0.4232, 0.4341),
        (-0.2533, -0.0042, 0.1068),
        (0.1076, 0.1111, -0.0362),
        (-0.3165, -0.2492, -0.2188),
    ),
    bias=(0.1084, -0.0175, -0.0011),
)

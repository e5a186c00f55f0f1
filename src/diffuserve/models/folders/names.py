"""Names of models: short ones for well-known models, and the commits that hub ids stand for."""

from collections.abc import Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "flux-schnell": "black-forest-labs/FLUX.1-schnell",
    "flux-dev": "black-forest-labs/FLUX.1-dev",
    "sdxl": "stabilityai/stable-diffusion-xl-base-1.0",
    "sdxl-turbo": "stabilityai/sdxl-turbo",
    "sd-1.5": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "wan-2.1-1.3b": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    "wan-2.1-14b": "Wan-AI/Wan2.1-T2V-14B-Diffusers",
    "wan-2.1-i2v": "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
    "wan-2.2-5b": "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
    "wan-2.2-a14b": "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
    "wan-2.2-i2v": "Wan-AI/Wan2.2-I2V-A14B-Diffusers",
}
"""Hub ids by short name; the bundled models have short names already."""

# What a hub id stands for may change under a server, so it means one commit.
HUB_COMMITS: Final[Mapping[str, str]] = {
    "black-forest-labs/FLUX.1-schnell": "741f7c3ce8b383c54771c7003378a50191e9efe9",
    "black-forest-labs/FLUX.1-dev": "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21",
    "stabilityai/stable-diffusion-xl-base-1.0": "462165984030d82259a11f4367a4eed129e94a7b",
    "stabilityai/sdxl-turbo": "71153311d3dbb46851df1931d3ca6e939de83304",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "451f4fe16113bff5a5d2269ed5ad43b0592e9a14",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "0fad780a534b6463e45facd96134c9f345acfa5b",
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": "38ec498cb3208fb688890f8cc7e94ede2cbd7f68",
    "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers": "b184e23a8a16b20f108f727c902e769e873ffc73",
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": "b8fff7315c768468a5333511427288870b2e9635",
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": "5be7df9619b54f4e2667b2755bc6a756675b5cd7",
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": "596658fd9ca6b7b71d5057529bbf319ecbc61d74",
}


def full_name(model: str) -> str:
    """Return the hub id that a short name stands for, with its `@COMMIT`; any other name as it is."""
    name, at, commit = model.partition("@")
    return f"{ALIASES.get(name, name)}{at}{commit}"


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form of a hub id, `owner/name` or `owner/name@COMMIT`."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))

"""Names of models: short ones for well-known models, and the commits that hub ids stand for."""

from collections.abc import Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "flux-schnell": "black-forest-labs/FLUX.1-schnell",
    "flux-dev": "black-forest-labs/FLUX.1-dev",
    "sdxl": "stabilityai/stable-diffusion-xl-base-1.0",
    "sdxl-turbo": "stabilityai/sdxl-turbo",
    "sd-1.5": "stable-diffusion-v1-5/stable-diffusion-v1-5",
}
"""Hub ids by short name; the bundled models have short names already."""

# What a hub id stands for may change under a server, so it means one commit.
HUB_COMMITS: Final[Mapping[str, str]] = {
    "black-forest-labs/FLUX.1-schnell": "741f7c3ce8b383c54771c7003378a50191e9efe9",
    "black-forest-labs/FLUX.1-dev": "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21",
    "stabilityai/stable-diffusion-xl-base-1.0": "462165984030d82259a11f4367a4eed129e94a7b",
    "stabilityai/sdxl-turbo": "71153311d3dbb46851df1931d3ca6e939de83304",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "451f4fe16113bff5a5d2269ed5ad43b0592e9a14",
}


def full_name(model: str) -> str:
    """Return the hub id that a short name stands for, with its `@COMMIT`; any other name as it is."""
    name, at, commit = model.partition("@")
    return f"{ALIASES.get(name, name)}{at}{commit}"


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form of a hub id, `owner/name` or `owner/name@COMMIT`."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))

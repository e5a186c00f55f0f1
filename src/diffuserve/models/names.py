"""Names of models: short ones for well-known models, and the commits that hub ids stand for."""

from collections.abc import Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "flux-schnell": "black-forest-labs/FLUX.1-schnell",
    "flux-dev": "black-forest-labs/FLUX.1-dev",
}
"""Hub ids by short name; the bundled models have short names already."""

# What a hub id stands for may change under a server, so it means one commit.
HUB_COMMITS: Final[Mapping[str, str]] = {
    "black-forest-labs/FLUX.1-schnell": "741f7c3ce8b383c54771c7003378a50191e9efe9",
    "black-forest-labs/FLUX.1-dev": "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21",
}


def full_name(model: str) -> str:
    """Return the hub id that a short name stands for, with its `@COMMIT`; any other name as it is."""
    name, at, commit = model.partition("@")
    return f"{ALIASES.get(name, name)}{at}{commit}"


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form of a hub id, `owner/name` or `owner/name@COMMIT`."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))

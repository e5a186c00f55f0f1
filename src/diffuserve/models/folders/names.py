"""Names of models: short ones for well-known models, and the commits that hub ids stand for."""

from collections.abc import Mapping
from typing import Final

from diffuserve.models.folders.known_models import KNOWN_MODELS

ALIASES: Final[Mapping[str, str]] = {name: model.hub_id for model in KNOWN_MODELS for name in model.names}
"""Hub ids by short name; the bundled models have short names already."""

# What a hub id stands for may change under a server, so it means one commit.
HUB_COMMITS: Final[Mapping[str, str]] = {
    model.hub_id: model.commit for model in KNOWN_MODELS if model.commit is not None
}


def full_name(model: str) -> str:
    """Return the hub id that a short name stands for, with its `@COMMIT`; any other name as it is."""
    name, at, commit = model.partition("@")
    return f"{ALIASES.get(name, name)}{at}{commit}"


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form of a hub id, `owner/name` or `owner/name@COMMIT`."""
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))

"""What a finished image says of itself."""

from collections.abc import Mapping
from typing import Any

from diffuserve.version import __version__


def provenance(
    params: Mapping[str, Any], image: int, model: str, model_hash: str | None = None
) -> dict[str, Any]:
    """What draws this one image again: image number `image` of a request whose first has
    `params["seed"]`. `model_hash` is the sha256 of the weights, in hex."""
    own = {"seed": params["seed"] + image, "num_images": 1, "model": model}
    told = {"model_hash": model_hash} if model_hash is not None else {}
    return {**params, **own, **told, "version": __version__}

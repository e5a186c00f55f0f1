"""The metadata from which a finished image can be generated again."""

from collections.abc import Mapping
from typing import Any

from diffuserve.version import __version__


def provenance(
    params: Mapping[str, Any],
    image: int,
    model: str,
    model_hash: str | None = None,
    quantization: str | None = None,
) -> dict[str, Any]:
    """Return the parameters that generate this image alone, with model and version.

    `image` is its index in the request; the request's first image has `params["seed"]`, each further image
    the next seed. `model_hash` is the sha256 of the weights' files, in hex; `quantization` says what the
    weights were kept in, where that was not their own numbers.
    """
    own = {"seed": params["seed"] + image, "num_images": 1, "model": model}
    weights = {"model_hash": model_hash} if model_hash is not None else {}
    numbers = {"quantization": quantization} if quantization is not None else {}
    return {**params, **own, **weights, **numbers, "version": __version__}

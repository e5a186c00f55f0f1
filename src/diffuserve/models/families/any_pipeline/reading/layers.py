"""Pipelines that take a picture apart into transparent layers: each is an image of its request."""

from typing import Any, Final

from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.any_pipeline.reading.signature import Signature

_RESOLUTIONS: Final = (640, 1024)
"""Sides of the squares that the class draws; other proportions have about as many pixels."""
_MULTIPLE: Final = 32


def makes_layers(signature: Signature) -> bool:
    """Return whether a class draws the layers of a picture."""
    return "layers" in signature.arguments


def layers(signature: Signature) -> dict[str, Any]:
    """Return what the spec of a class that draws layers says beside others."""
    if not makes_layers(signature):
        return {}
    own = _RESOLUTIONS[0]
    return {
        "has_layers": True,
        "width": own,
        "height": own,
        "max_pixels": _RESOLUTIONS[-1] ** 2,
        "max_reference_pixels": own**2,
    }


def multiple_of_layers(signature: Signature) -> int:
    """Return what the class rounds both sides to; 1 for a class without layers."""
    return _MULTIPLE if makes_layers(signature) else 1


def layer_arguments(signature: Signature, params: GenerationParams) -> dict[str | None, Any]:
    """Return the arguments of a class that draws layers: as many as the request has images."""
    if not makes_layers(signature):
        return {}
    return {"layers": params.num_images, "resolution": _resolution(params)}


def with_alpha(signature: Signature, picture: Image.Image) -> Image.Image:
    """Return a picture as a class reads it, with an alpha channel where its autoencoder has one."""
    return picture.convert("RGBA") if makes_layers(signature) else picture


def _resolution(params: GenerationParams) -> int:
    pixels = (params.width or 0) * (params.height or 0)
    return min(_RESOLUTIONS, key=lambda side: abs(side**2 - pixels))

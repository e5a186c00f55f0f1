"""The background of images: transparent where the model draws layers, and else opaque."""

from typing import Literal

from diffuserve.domain.errors import ModelNotCapable
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.media.file_names import check_keeps_transparency

Background = Literal["auto", "opaque", "transparent"]


def background_of(spec: ModelSpec) -> Background:
    """Return the background of a model's images."""
    return "transparent" if spec.has_layers else "opaque"


def check_background(asked: Background | None, output_format: str, spec: ModelSpec) -> None:
    """Raise `ModelNotCapable` for a background that the model's images do not have.

    Raise `InvalidParams` for a transparent one in a file format that keeps no transparency.
    """
    if asked in (None, "auto"):
        return
    own = background_of(spec)
    if asked != own:
        remedy = f"images of {spec.name} are {own}; give {own} or auto, or another model"
        raise ModelNotCapable("background", asked, remedy)
    if asked == "transparent":
        check_keeps_transparency("output_format", output_format)

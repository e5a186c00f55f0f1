"""What the fields of images say: of which mode their images are, and which images a job names."""

from collections.abc import Mapping
from typing import Any

from diffuserve.domain.requests.input_image import Mode, each_image
from diffuserve.domain.requests.params import IMAGE_FIELDS


def mode_of(field: str) -> Mode:
    """Return the mode of a field's images; what is read for no field has colors."""
    return IMAGE_FIELDS[field].mode if field in IMAGE_FIELDS else "RGB"


def input_ids(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the images in the `input` of a job, each once."""
    named = (_image(each) for name in IMAGE_FIELDS for each in each_image(values.get(name)))
    return tuple(dict.fromkeys(image["id"] for image in named if isinstance(image, Mapping)))


def _image(value: Any) -> Any:
    """Return the image of a value of a field: itself, or what it has beside other things."""
    return value.get("image", value) if isinstance(value, Mapping) else value

"""OpenAPI schemas of bodies that are forms or JSON, which FastAPI cannot derive from a route."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from diffuserve.api.door.forms import FORM
from diffuserve.api.http.openapi import inlined_schema
from diffuserve.api.openai.request_bodies import EditBody, EditFields, VariationFields
from diffuserve.api.openai.video_bodies import ExtensionBody, VideoBody, VideoEditBody, VideoFields
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES

_FILE = {"type": "string", "format": "binary"}
_IMAGE = _FILE | {"description": "PNG, JPEG or WebP."}
_IMAGES = {"type": "array", "items": _FILE, "maxItems": MAX_INPUT_IMAGES}
_CLIP = {"video": _FILE | {"description": "A clip that was generated here."}}
_MASK = _FILE | {
    "description": "As large as the image; transparent, or white if it is opaque, where it changes."
}


def edit_schema() -> dict[str, Any]:
    """Return the description of an edit's body."""
    files = {"image": _IMAGE, "image[]": _IMAGES, "mask": _MASK}
    return _body({FORM: _form(EditFields, files), "application/json": inlined_schema(EditBody)})


def variation_schema() -> dict[str, Any]:
    """Return the description of a variation's body."""
    return _body({FORM: _form(VariationFields, {"image": _IMAGE}, "image")})


def video_schema() -> dict[str, Any]:
    """Return the description of a clip's body."""
    form = _form(VideoFields, {"input_reference": _IMAGE | {"description": "First frame of the clip."}})
    return _body({FORM: form, "application/json": inlined_schema(VideoBody)})


def video_edit_schema() -> dict[str, Any]:
    """Return the description of a body that names another clip."""
    return _body({FORM: _form(VideoEditBody, _CLIP), "application/json": inlined_schema(VideoEditBody)})


def extension_schema() -> dict[str, Any]:
    """Return the description of an extension's body."""
    return _body({FORM: _form(ExtensionBody, _CLIP), "application/json": inlined_schema(ExtensionBody)})


def _form(model: type[BaseModel], files: Mapping[str, Any], *required: str) -> dict[str, Any]:
    schema = inlined_schema(model)
    schema["properties"] = {**files, **schema["properties"]}
    schema["required"] = [*required, *schema.get("required", ())]
    return schema


def _body(schemas: Mapping[str, Any]) -> dict[str, Any]:
    content = {content_type: {"schema": schema} for content_type, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}

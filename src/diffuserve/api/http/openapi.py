"""The OpenAPI document, whose response schemas derive from the dataclasses of `domain.resources`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from diffuserve.api.config import DoorName
from diffuserve.domain.resource_base import Resource

TAGS = {
    "jobs": "Jobs: images, clips and sounds that are drawn once, whatever fails meanwhile.",
    "events": "What happens to a job, as it happens.",
    "results": "Finished files.",
    "files": "Images that jobs read, and the lines of batches.",
    "batches": "Many jobs at once.",
    "models": "What can be drawn with.",
    "adapters": "Adapters (LoRA) of models.",
    "webhooks": "Messages to your server when jobs end.",
    "plan": "What the caller may use.",
    "usage": "What was used.",
    "simple": "Flat routes for scripts.",
    "openai": "Routes for programs that were written for OpenAI's API.",
    "a1111": "Routes for programs that were written for AUTOMATIC1111's web UI.",
    "comfyui": "Routes for programs that were written for ComfyUI.",
    "fal": "Routes for programs that were written for fal.",
    "session": "The web page's signing in.",
    "operations": "For operators and monitors.",
    "workers": "For workers; operators list and drain them.",
    "leases": "For workers that hold a job.",
}
"""Groups of operations and what they are, in the order of the document: people's before programs'."""


class DocumentedApi(FastAPI):
    """FastAPI application whose document declares that resources are written whole."""

    def openapi(self) -> dict[str, Any]:
        """Return the document, built at the first call."""
        document = super().openapi()
        close_resources(document["components"]["schemas"])
        order_parameters(document["paths"])
        name_streamed_values(document["paths"])
        document["paths"] = ordered_paths(document["paths"])
        return document


def operation_id(route: APIRoute) -> str:
    """Return a route's name, its function's by default, as clients write it: `submitJob`, `falSubmit`."""
    doors = [str(tag) for tag in route.tags if tag in set(DoorName)]
    first, *others = [*doors, *route.name.split("_")]
    return first + "".join(map(str.capitalize, others))


def ordered_paths(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths in the order of their tags; those of one tag stay as they are."""
    places = {tag: place for place, tag in enumerate(TAGS)}

    def place(path: str) -> int:
        return min(places[tag] for operation in paths[path].values() for tag in operation["tags"])

    return {path: paths[path] for path in sorted(paths, key=place)}


def close_resources(schemas: dict[str, Any]) -> None:
    """Declare, in place, that each resource has all of its fields and no others.

    pydantic marks a field with a default as optional, and allows others, since it reads what clients send;
    but orjson writes every field of a dataclass. Closing a schema twice changes nothing.
    """
    names = {resource.__name__ for resource in resource_types()}
    for name in names & schemas.keys():
        schema = schemas[name]
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
        for field in schema["properties"].values():
            field.pop("default", None)


def order_parameters(paths: Mapping[str, Any]) -> None:
    """Put, in place, the parameters of each path in its order, whether a route or a dependency takes them."""
    for path, operations in paths.items():
        places = {name: place for place, name in enumerate(re.findall(r"{(\w+)}", path))}
        for operation in operations.values():
            _sort(operation.get("parameters", []), places)


def name_streamed_values(paths: Mapping[str, Any]) -> None:
    """Let, in place, the schema of a stream be that of its values, where FastAPI says text as well."""
    for operation in (each for path in paths.values() for each in path.values()):
        for response in operation["responses"].values():
            for kind, media in response.get("content", {}).items():
                if "$ref" in media.get("schema", {}):
                    value = {"$ref": media["schema"]["$ref"]}
                    media["schema"] = _message_of(value) if kind == "text/event-stream" else value


def _message_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a server-sent event whose data is a value as JSON."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": value}
    text = {"type": "string"}
    return {"type": "object", "properties": {"event": text, "id": text, "data": data}, "required": ["data"]}


def _sort(parameters: list[Any], places: Mapping[str, int]) -> None:
    parameters.sort(key=lambda each: places.get(each["name"], len(places)))


def resource_types(root: type[Resource] = Resource) -> Iterator[type[Resource]]:
    """Yield every class derived from `Resource`."""
    for resource in root.__subclasses__():
        yield resource
        yield from resource_types(resource)


def inlined_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's schema, with every reference replaced by what it refers to."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(element) for element in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].rpartition("/")[2]])
        return {name: inlined(value) for name, value in part.items()}

    whole: dict[str, Any] = inlined(schema)
    return whole

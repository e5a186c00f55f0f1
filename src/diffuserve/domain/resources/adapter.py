"""Adapters, as the API writes them."""

from dataclasses import dataclass, field
from typing import Literal

from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class AdapterResource(Resource):
    """Adapter (LoRA) that requests may name in `input.adapters`."""

    name: str
    object: Literal["adapter"] = "adapter"
    is_public: bool = field(metadata={"description": "True if every tenant may name it."})
    digest: str = field(metadata={"description": "SHA-256 of the file, in hexadecimal."})
    bytes: int
    families: tuple[str, ...] = field(
        metadata={"description": "Families of models whose layers the file names."}
    )
    model: str | None = field(
        metadata={"description": "Model whose layers it was checked against; null if none was named."}
    )
    models: tuple[str, ...] = field(metadata={"description": "Served models of its families."})
    rank: int = field(metadata={"description": "The largest of its layers."})
    num_layers: int
    created_at: int = field(metadata={"description": "In Unix seconds."})


@dataclass(frozen=True, kw_only=True)
class AdapterList(Resource):
    """Adapters that the caller's requests may name, by name."""

    object: Literal["list"] = "list"
    data: tuple[AdapterResource, ...]


@dataclass(frozen=True, kw_only=True)
class DeletedAdapter(Resource):
    """Answer to the deletion of an adapter."""

    name: str
    object: Literal["adapter"] = "adapter"
    deleted: Literal[True] = True

"""Adapters, as the API writes them."""

from dataclasses import dataclass, field
from typing import Literal

from diffuserve.domain.resource_base import Resource

AdapterOrigin = Literal["store", "model", "worker"]


@dataclass(frozen=True, kw_only=True)
class AdapterResource(Resource):
    """Adapter (LoRA) that requests may name in `input.adapters`."""

    name: str
    object: Literal["adapter"] = "adapter"
    origin: AdapterOrigin = field(
        metadata={
            "description": "Where it comes from: the store, the model that it ships with, or files of "
            "workers' own. Of the last two no more is known than the models."
        }
    )
    is_public: bool = field(metadata={"description": "True if every tenant may name it."})
    digest: str | None = field(default=None, metadata={"description": "SHA-256 of the file, in hexadecimal."})
    bytes: int | None = None
    families: tuple[str, ...] = field(
        metadata={"description": "Families of models whose layers the file names."}
    )
    model: str | None = field(
        default=None,
        metadata={"description": "Model whose layers it was checked against; null if none was named."},
    )
    models: tuple[str, ...] = field(metadata={"description": "Served models of its families."})
    rank: int | None = field(default=None, metadata={"description": "The largest of its layers."})
    num_layers: int | None = None
    created_at: int | None = field(default=None, metadata={"description": "In Unix seconds."})


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

"""Schemas of the configs in model folders: dataclasses whose annotations carry each value's bounds.

A folder may come from anywhere, so a config is refused before anything is built of it.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from diffuserve.domain.codec import adapter_of
from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.text.shortened import shortened

Config = TypeVar("Config")

SCHEMA = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
"""For `pydantic.with_config` on each schema: exact types, finite numbers; other names do not matter."""

Depth = Annotated[int, Field(ge=0, le=512)]
"""A number of layers."""
Width = Annotated[int, Field(ge=1, le=65_536)]
"""A number of channels, heads or tokens."""
Vocabulary = Annotated[int, Field(ge=1, le=1 << 20)]
"""A number of different tokens."""


def parse_config(schema: type[Config], values: Mapping[str, Any], origin: str) -> Config:
    """Build a `schema` from a config's `values`; raise `InvalidModel` that names `origin` and the value."""
    try:
        found: Config = adapter_of(schema).validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InvalidModel(f"{origin}: {name}={shortened(first['input'])}: {first['msg']}") from None
    except (RecursionError, ValueError) as error:
        raise InvalidModel(f"{origin}: not a config ({type(error).__name__})") from None
    return found

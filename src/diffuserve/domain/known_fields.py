"""Values that another version wrote, as far as a dataclass has fields for them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are fields of the dataclass `kind`; a newer version may have written more."""
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}

"""What was chosen when a model was loaded: values for programs, and the same for people to read."""

from collections.abc import Mapping

Description = Mapping[str, str | int | bool]
"""Choices by name; the unit of a number ends its name."""


def shown(description: Description) -> dict[str, str]:
    """Return the choices as people read them: bytes in GB or MB, and without the unit in their names."""
    return dict(_shown(name, value) for name, value in description.items())


def in_a_line(description: Description) -> str:
    """Return the choices in one line."""
    return " · ".join(f"{name} {value}" for name, value in shown(description).items())


def _shown(name: str, value: str | int | bool) -> tuple[str, str]:
    if isinstance(value, str):
        return name, value
    if isinstance(value, bool):
        return name, str(value).lower()
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes").replace("_", " "), _size(value)
    return name, f"{value:,}"


def _size(num_bytes: int) -> str:
    unit, name = (1e9, "GB") if num_bytes >= 1e9 else (1e6, "MB")
    return f"{num_bytes / unit:.2f} {name}"

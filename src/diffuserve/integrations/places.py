"""Where the files for another server are written."""

from pathlib import Path

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.text.path_parts import FILE_NAME


def new_place(folder: Path, name: str, suffix: str = "") -> Path:
    """Return the path of a model by its name. Raise `InvalidParams` for a bad name, and if it is there."""
    if not FILE_NAME.fullmatch(name):
        raise InvalidParams("name", name, "must be of letters, digits, '.', '_' and '-'")
    place = folder / f"{name}{suffix}"
    if place.exists():
        raise InvalidParams("DIR", str(place), "is there already; remove it, or give another --name")
    return place

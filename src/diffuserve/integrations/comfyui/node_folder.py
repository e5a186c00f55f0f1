"""The folder of nodes, written where ComfyUI finds it."""

from importlib.resources import files
from pathlib import Path

from diffuserve.integrations.places import new_place

_NODES = "diffuserve_nodes"


def write_nodes(custom_nodes: Path, name: str) -> Path:
    """Copy the nodes into a folder of ComfyUI's `custom_nodes`, and return it.

    Raise `InvalidParams` for a bad name, and if the folder is there already.
    """
    place = new_place(custom_nodes, name)
    place.mkdir(parents=True)
    for source in files(__package__).joinpath(_NODES).iterdir():
        if source.name.endswith(".py"):
            (place / source.name).write_text(source.read_text())
    return place

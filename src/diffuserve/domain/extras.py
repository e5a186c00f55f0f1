"""Extras of the package: whether they are installed, and how they are."""

from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from diffuserve.domain.errors import InvalidParams


class Extra(StrEnum):
    """An extra of the package that messages name."""

    SERVER = "server"
    ENGINE = "engine"
    MODELS = "models"
    PICTURES = "pictures"
    DIFFUSERS = "diffusers"
    IMAGES = "images"
    MODERATION = "moderation"
    NUDENET = "nudenet"
    PEERS = "peers"
    RAY = "ray"
    TRACING = "tracing"
    TRANSFORMERS = "transformers"

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return f"pip install 'diffuserve[{self}]'"


_TELLTALES: Final = {
    Extra.SERVER: ("fastapi", "sqlalchemy", "numpy", "obstore"),
    Extra.ENGINE: ("torch", "tokenizers", "jaxtyping", "einops"),
    Extra.PICTURES: ("PIL",),
    Extra.DIFFUSERS: ("diffusers", "transformers"),
    Extra.RAY: ("ray",),
}
"""Modules by which an extra is told to be installed, those first that messages should name."""


def missing_module(extra: Extra) -> str | None:
    """Return a module that `extra` would bring; `None` if it is installed. Nothing is imported."""
    return next((name for name in _TELLTALES[extra] if find_spec(name) is None), None)


def check_installed(model: str) -> None:
    """Raise `InvalidParams` if what runs a model is not installed."""
    if (module := missing_module(Extra.ENGINE)) is not None:
        remedy = f"is run by {module}, which is not installed; {Extra.ENGINE.remedy}"
        raise InvalidParams("model", model, remedy)

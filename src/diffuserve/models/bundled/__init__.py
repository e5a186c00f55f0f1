"""Models that ship with the package."""

from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.bundled.packed_weights import unpack_weights

_HOME = Path(__file__).parent


def bundled_models() -> dict[str, Path]:
    """Return the folders of the bundled models by name, with their weights.

    In a checkout they are unpacked first. Raise `InvalidModel` if they cannot be written there.
    """
    try:
        unpack_weights(_HOME)
    except OSError as error:
        raise InvalidModel(
            f"{error.filename or _HOME}: the bundled weights of this checkout cannot be unpacked "
            f"({error.strerror}); make its folder writable, or install the package: pip install ."
        ) from error
    return {path.parent.name: path.parent for path in sorted(_HOME.glob("*/model_index.json"))}

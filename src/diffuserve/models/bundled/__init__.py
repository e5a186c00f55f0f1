"""What ships with the package: models' configs, adapters, and with the extra `models` the models' weights."""

from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.extras import Extra
from diffuserve.models.bundled.packed_weights import unpack_weights

_HOME = Path(__file__).parent


def bundled_models() -> dict[str, Path]:
    """Return the folders of the bundled models by name.

    In a checkout their weights are unpacked first. Raise `InvalidModel` if they cannot be written there.
    """
    try:
        unpack_weights(_HOME)
    except OSError as error:
        raise InvalidModel(
            f"{error.filename or _HOME}: the bundled weights of this checkout cannot be unpacked "
            f"({error.strerror}); make its folder writable, or install the package"
        ) from error
    return {path.parent.name: path.parent for path in sorted(_HOME.glob("*/model_index.json"))}


def bundled_adapters() -> dict[str, dict[str, Path]]:
    """Return the files of the adapters that ship for bundled models: by the model's name, then by theirs."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(_HOME.glob("adapters/*/*.safetensors")):
        found.setdefault(path.parent.name, {})[path.stem] = path
    return found


def missing_weights(folder: Path) -> str:
    """Return why a bundled model has no weights, and the remedy; empty for every other folder."""
    if folder.parent != _HOME or any(folder.glob("*/*.safetensors")):
        return ""
    return f"the weights of the bundled models are not installed; {Extra.MODELS.remedy}"

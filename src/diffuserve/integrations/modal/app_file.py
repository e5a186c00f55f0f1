"""The file that holds an app of Modal, with the model and the GPU that it was asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from diffuserve.domain.errors import InvalidParams
from diffuserve.version import __version__

_TEMPLATE: Final = Path(__file__).with_name("app.py")
_GPU: Final = 'GPU = "H100"'
_SETTINGS: Final = "SETTINGS: dict[str, Any] = {}"
_PACKAGE: Final = 'PACKAGE = "diffuserve[engine,models]"'


def write_app(file: Path, settings: Mapping[str, str], gpu: str) -> Path:
    """Write the app, and return its path; `settings` are diffuserve's by name, `gpu` is a name of Modal's.

    Raise `InvalidParams` if the file is there already, or no file of Python.
    """
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise InvalidParams("FILE", str(file), "must be a module that Modal can import, such as images.py")
    if file.exists():
        raise InvalidParams("FILE", str(file), "is there already; remove it, or give another name")
    text = _TEMPLATE.read_text(encoding="utf-8")
    chosen = {
        _SETTINGS: f"SETTINGS = {dict(settings)!r}",
        _GPU: f"GPU = {gpu!r}",
        _PACKAGE: f'PACKAGE = "diffuserve[engine,models]=={__version__}"',
    }
    for line, other in chosen.items():
        assert line in text
        text = text.replace(line, other)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file

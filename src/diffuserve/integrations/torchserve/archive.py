"""The model archive that TorchServe serves: a zip of its manifest, its configuration and the handler."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from diffuserve.integrations.places import new_place
from diffuserve.version import __version__

_HANDLER: Final = '''"""diffuserve behind TorchServe, which takes the one class that is defined here."""

from diffuserve.integrations.torchserve.handler import DiffuserveHandler


class Handler(DiffuserveHandler):
    """Named here, since TorchServe looks at no class from elsewhere."""
'''


def write_archive(folder: Path, name: str, settings: Mapping[str, str]) -> Path:
    """Write `name`.mar into a model store, and return its path; `settings` are diffuserve's by their names.

    Raise as `new_place` does.
    """
    archive = new_place(folder, name, ".mar")
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "MAR-INF/MANIFEST.json": json.dumps(_manifest(name), indent=2),
        "model-config.yaml": yaml.safe_dump(_config(settings), sort_keys=False),
        "handler.py": _HANDLER,
    }
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path, text in files.items():
            zipped.writestr(path, text)
    return archive


def _manifest(name: str) -> Mapping[str, Any]:
    model = {"modelName": name, "modelVersion": __version__, "handler": "handler.py"}
    configured = {**model, "configFile": "model-config.yaml"}
    return {"runtime": "python", "model": configured, "archiverVersion": "0.12.0"}


def _config(settings: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the model's configuration: one worker, to which requests go one by one as they come.

    With a `batchSize` above 1 the frontend of TorchServe 0.12 loses its worker to a race of its own threads.
    """
    return {
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "maxBatchDelay": 0,
        "asyncCommunication": True,
        "responseTimeout": 600,
        "startupTimeout": 600,
        "handler": dict(settings),
    }

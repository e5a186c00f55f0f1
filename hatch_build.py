"""Build hook: a wheel holds the bundled models' weights plain, of which the repository has packed ones."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUNDLED = Path("src", "diffuserve", "models", "bundled")


class UnpackWeights(BuildHookInterface[Any]):
    """Unpacks what is not unpacked yet, before the builder lists the files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        bundled = Path(self.root) / _BUNDLED
        runpy.run_path(str(bundled / "packed_weights.py"))["unpack_weights"](bundled)

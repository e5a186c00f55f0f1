"""Build of the distribution `diffuserve-models`: plain weights, for the version of diffuserve beside it."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class PlainWeights(BuildHookInterface[Any]):
    """Unpacks the weights, and has them installed beside the configs, with notices of what they learned."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        packed = Path(self.root)
        runpy.run_path(str(packed.parent / "packed_weights.py"))["unpack_weights"](packed.parent)
        for file in packed.glob("*/**/*.xz"):
            name = file.relative_to(packed).with_suffix("")
            build_data["force_include"][str(packed.parent / name)] = f"diffuserve/models/bundled/{name}"
        for file in packed.glob("*/NOTICE.md"):
            name = file.relative_to(packed)
            build_data["force_include"][str(file)] = f"diffuserve/models/bundled/{name}"


class SameVersion(MetadataHookInterface):
    """Requires the configs of the same version."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"diffuserve=={metadata['version']}"]

"""Installs the fake family as pip would, and writes its models."""

import json
from pathlib import Path
from typing import Any

from diffuserve.models.registry import ENTRY_POINT_GROUP

PIPELINE_CLASS = "CloudVideoPipeline"
_OBJECT = "support.fake_family.family:FAMILY"


def install_fake_family(site: Path, pipeline_class: str = PIPELINE_CLASS) -> Path:
    """Write the metadata of a package with the family's entry point; `site` must come onto `sys.path`."""
    metadata = site / "clouds-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: clouds\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{pipeline_class} = {_OBJECT}\n")
    return site


def write_fake_model(folder: Path, makes: str = "clips", **settings: Any) -> Path:
    """Write a model of the fake family, with a settings file if there are settings; return its folder.

    It `makes` "clips", "clips with sound" or "sounds".
    """
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": PIPELINE_CLASS, "_makes": makes}))
    if settings:
        (folder / "diffuserve.json").write_text(json.dumps(settings))
    return folder

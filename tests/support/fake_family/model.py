"""A model of the fake family whose steps are counted."""

import os
import sys
from pathlib import Path

import pytest

from support.fake_family.family import STEPS
from support.fake_family.install import install_fake_family, write_fake_model


def write_counted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the model, whose family engine processes of this test find as well."""
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folder = write_fake_model(tmp_path / "clouds")
    (folder / STEPS).touch()
    return folder


def num_steps(model: Path) -> int:
    """Return how many steps the engines of a model have done."""
    return (model / STEPS).stat().st_size

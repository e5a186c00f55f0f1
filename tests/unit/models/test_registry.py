"""The registry knows every family and loads none."""

import subprocess
import sys
from importlib import import_module

import pytest

from diffuserve.models.registry import PIPELINES


def test_importing_the_registry_imports_neither_torch_nor_a_family() -> None:
    code = (
        "import sys, diffuserve.models.registry;"
        "print(*(name for name in ('torch', 'diffusers', 'transformers', 'diffuserve.models.flux')"
        " if name in sys.modules))"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == []


@pytest.mark.parametrize("pipeline_class", PIPELINES)
def test_every_registered_class_exists_and_can_be_loaded(pipeline_class: str) -> None:
    module, name = PIPELINES[pipeline_class].split(":")
    family = getattr(import_module(module), name)
    assert isinstance(family, type)
    assert callable(getattr(family, "load", None))

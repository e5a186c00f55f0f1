"""Manifests as Kustomize renders them."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
_HASH = re.compile(r"\b(control-settings)-[0-9a-z]{10}\b")  # of a ConfigMap's content, in its name

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """An overlay or the base with components, as folders of `deploy/kubernetes`."""

    folder: str
    components: tuple[str, ...] = ()


@cache
def rendered(source: Source) -> Sequence[Manifest]:
    """Return the objects of a source, with the ConfigMap's plain name. Raise `CalledProcessError`."""
    if not source.components:
        return _built(FOLDER / source.folder)
    with tempfile.TemporaryDirectory() as made:  # components are named in a kustomization alone
        folder = Path(made).resolve()
        parts = {
            "resources": [os.path.relpath(FOLDER / source.folder, folder)],
            "components": [os.path.relpath(FOLDER / name, folder) for name in source.components],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts), encoding="utf-8")
        return _built(folder)


def _built(folder: Path) -> Sequence[Manifest]:
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(
        [str(kubectl), "kustomize", str(folder)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(_HASH.sub(r"\1", done.stdout)))


def manifest(source: Source, kind: str, name: str) -> Manifest:
    """Return one object."""
    [found] = [each for each in rendered(source) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def objects_of(component: str) -> Sequence[Manifest]:
    """Return the objects that a component adds to the base."""
    alone = {(each["kind"], each["metadata"]["name"]) for each in rendered(Source("base"))}
    with_it = rendered(Source("base", (component,)))
    return [each for each in with_it if (each["kind"], each["metadata"]["name"]) not in alone]

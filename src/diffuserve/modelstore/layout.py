"""The layout of a store of models: the same in a bucket, a shared volume and a worker's cache.

    names/NAME/HASH                 this version of the model is published
    models/HASH/manifest.json       what it consists of
    models/HASH/NAME/…              its files

The name is written last and removed first, so that what is listed is complete. A cache has one more folder:

    prepared/KEY/…                  weights of a model in the engine's own layout
"""

from diffuserve.modelstore.manifest import Manifest, ModelFile

NAMES = "names"
MODELS = "models"
PREPARED = "prepared"
MANIFEST = "manifest.json"


def name_key(name: str, version: str) -> str:
    """Return the key that publishes a version of a model."""
    return f"{NAMES}/{name}/{version}"


def folder_key(version: str) -> str:
    """Return the folder of a version."""
    return f"{MODELS}/{version}"


def manifest_key(version: str) -> str:
    """Return the key of a version's manifest."""
    return f"{MODELS}/{version}/{MANIFEST}"


def file_key(manifest: Manifest, file: ModelFile) -> str:
    """Return the key of a file."""
    return f"{MODELS}/{manifest.hash}/{manifest.name}/{file.path}"

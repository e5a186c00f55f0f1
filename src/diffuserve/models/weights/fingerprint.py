"""Hashes of weights, which identify the model that generated an image."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.text.path_parts import SHA256
from diffuserve.models.folders.folder import ALONE, Companions, open_model
from diffuserve.models.weights.published import published_hash


def hash_weights(folder: Path, pattern: str = "*/*.safetensors") -> str:
    """Return the sha256 of names and contents of all weights in a model's folder, in hex.

    It covers what `sha256sum` prints for them in the order of their names:
    `cd FOLDER && LC_ALL=C sha256sum */*.safetensors | sha256sum`. The configs beside them are not part
    of it. Reads every weight once: a second or so for each gigabyte.
    """
    return combine_hashes(
        {path.relative_to(folder).as_posix(): hash_file(path) for path in folder.glob(pattern)}
    )


def combine_hashes(hashes: Mapping[str, str]) -> str:
    """Return the hash of weights from those of the files, by path."""
    lines = [f"{hashes[path]}  {path}\n" for path in sorted(hashes)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hash_model(name: str, quantization: Quantization = Quantization.NONE) -> str:
    """Return the fingerprint of a model, by its name or folder. Raise `ModelNotFound`."""
    return fingerprint(hash_weights(open_model(name).path), quantization)


def fingerprint(weights_hash: str, quantization: Quantization) -> str:
    """Return the identity of weights in memory: the hash of their files and their number format."""
    return weights_hash if quantization is Quantization.NONE else f"{weights_hash}+{quantization}"


def with_companions(weights: str, companions: Companions) -> str:
    """Return what tells a model and all that is loaded beside it apart, given what tells its weights apart.

    Reads every file beside it once.
    """
    if companions == ALONE:
        return weights
    places = [(net.name, net.path) for net in companions.controlnets]
    places += [] if companions.image_prompter is None else [("image prompts", companions.image_prompter)]
    hashes = {
        f"{name}/{path.name}": hash_file(path)
        for name, place in places
        for path in ([place] if place.is_file() else place.rglob("*.safetensors"))
    }
    return f"{weights}+{combine_hashes(hashes)}"


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's content, in hex; the file is read only if that is not known."""
    if (known := known_hash(path)) is not None:
        return known
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_hash(path: Path) -> str | None:
    """Return the sha256 of a file if it is known without reading the file.

    In the hub's cache a large file is named by its hash, in a model store's the manifest has it.
    """
    if (known := published_hash(path)) is not None:
        return known
    blob = path.resolve()
    is_named = blob.parent.name == "blobs" and SHA256.fullmatch(blob.name)
    return blob.name if is_named else None

"""The configs of a model in a store, without its weights: a worker offers models before fetching them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from diffuserve.domain.errors import InvalidModel
from diffuserve.modelstore.manifest import Manifest, ModelFile

if TYPE_CHECKING:
    from diffuserve.modelstore.bucket import ModelBucket

_MAX_BYTES = 1024 * 1024  # larger ones are vocabularies
_SUFFIX = ".json"
_TRIES = 2  # a single read may be damaged


@dataclass(frozen=True)
class DescribedModel:
    """A manifest, and a folder that has at least the model's configs."""

    manifest: Manifest
    folder: Path


@contextmanager
def fetched_configs(bucket: "ModelBucket", manifest: Manifest) -> Iterator[DescribedModel]:
    """Fetch a model's configs, which are deleted after the block.

    Raise `InvalidModel` for a config that does not match the manifest, and raise as the bucket does.
    """
    with TemporaryDirectory(prefix="diffuserve-configs-") as root:
        folder = Path(root) / manifest.name
        folder.mkdir()
        for file in manifest.files:
            if file.path.endswith(_SUFFIX) and file.size <= _MAX_BYTES:
                path = folder / file.path
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(_content(bucket, manifest, file))
        yield DescribedModel(manifest, folder)


def _content(bucket: "ModelBucket", manifest: Manifest, file: ModelFile) -> bytes:
    for _ in range(_TRIES):
        content = bytes(bucket.read(manifest, file, range(file.size))) if file.size else b""
        if hashlib.sha256(content).hexdigest() == file.sha256:
            return content
    raise InvalidModel(
        f"{manifest.reference}: {file.path} is damaged in {bucket.place}; push the model again"
    )

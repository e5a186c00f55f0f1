"""Models in a bucket of S3 or Google Cloud Storage, or in a folder used as a bucket."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.store import LocalStore, ObjectStore

from diffuserve.domain.errors import ArtifactNotFound, InvalidParams, ModelNotFound
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.domain.text.path_parts import SHA256
from diffuserve.modelstore.layout import MODELS, NAMES, file_key, manifest_key, name_key
from diffuserve.modelstore.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ModelFile,
    Reference,
    is_reference,
    parse_manifest,
)
from diffuserve.private_files import refused_if_unusable
from diffuserve.remote.buckets import SCHEMES, open_bucket, translated

_STORE = "model"
_SETTING = "model_store"
_PART_BYTES = 8 * 1024 * 1024  # larger files are uploaded in parts of this size


@dataclass(frozen=True, order=True)
class Version:
    """A published version of a model."""

    published_at: datetime
    name: str
    hash: str

    @property
    def reference(self) -> str:
        """Name and hash, which identify exactly this version."""
        return f"{self.name}@{self.hash}"


@dataclass(frozen=True)
class StoredObject:
    """An object of the bucket."""

    key: str
    size: int
    changed_at: datetime


class ModelBucket:
    """Published models. Safe from any thread.

    Every method raises `ServerUnavailable` if the bucket is unavailable after its retries, and
    `StorageRefused` if it does not exist or refuses access.
    """

    def __init__(self, store: ObjectStore, place: str) -> None:
        """Use the objects of `store`; `place` is its URL, for messages."""
        self._store = store
        self.place = place

    def versions(self, name: str | None = None) -> list[Version]:
        """Return the published versions, of one model or of all, in the order of their publication."""
        found = self.objects(f"{NAMES}/{name}" if name else NAMES)
        return sorted(version for version in map(_version_of, found) if version is not None)

    def find(self, reference: Reference) -> Version:
        """Return the version of a reference; without a hash the newest one.

        Raise `ModelNotFound`, with the nearest names, if there is none or if the hash is ambiguous.
        """
        fitting = [version for version in self.versions(reference.name) if reference.fits(version.hash)]
        if not fitting:
            raise ModelNotFound(self._explain_missing(reference))
        if reference.digits and len(fitting) > 1:
            hashes = " or ".join(version.hash for version in fitting)
            raise ModelNotFound(f"{reference} in {self.place} may be {hashes}; give more digits")
        return fitting[-1]

    def manifest(self, version: str) -> Manifest:
        """Return a version's manifest. Raise `ModelNotFound`, or `InvalidModel` if its hash differs."""
        try:
            with translated(_STORE, key := manifest_key(version)):
                found = obstore.get(self._store, key)
                if found.meta["size"] <= MAX_MANIFEST_BYTES:
                    return parse_manifest(bytes(found.bytes()), version)
        except ArtifactNotFound:
            raise ModelNotFound(f"{self.place} has no model with the hash {version}") from None
        return parse_manifest(bytes(MAX_MANIFEST_BYTES + 1))

    def read(self, manifest: Manifest, file: ModelFile, part: range) -> memoryview:
        """Return a part of a file. Raise `ModelNotFound` if it is not there: the model was removed."""
        try:
            with translated(_STORE, key := file_key(manifest, file)):
                return memoryview(obstore.get_range(self._store, key, start=part.start, end=part.stop))
        except ArtifactNotFound:
            raise ModelNotFound(
                f"{manifest.reference}: {file.path} is not in {self.place}; was the model removed?"
            ) from None

    def missing(self, manifest: Manifest) -> list[ModelFile]:
        """Return the files of a manifest that are missing or have another size."""
        sizes = {found.key: found.size for found in self.objects(f"{MODELS}/{manifest.hash}")}
        return [file for file in manifest.files if sizes.get(file_key(manifest, file)) != file.size]

    def objects(self, folder: str) -> list[StoredObject]:
        """Return all objects under a folder."""
        with translated(_STORE):
            return [
                StoredObject(entry["path"], entry["size"], entry["last_modified"])
                for batch in obstore.list(self._store, f"{folder}/")
                for entry in batch
            ]

    def put(self, key: str, content: bytes | Iterator[bytes]) -> None:
        """Store an object, which becomes visible only once it is complete."""
        with translated(_STORE):
            obstore.put(self._store, key, content, chunk_size=_PART_BYTES)

    def publish(self, version: Manifest) -> None:
        """Write the manifest, then the name. The files must be there."""
        self.put(manifest_key(version.hash), version.to_json())
        self.put(name_key(version.name, version.hash), f"{version.hash}\n".encode())

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; another may have deleted some meanwhile."""
        with translated(_STORE):
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _explain_missing(self, reference: Reference) -> str:
        names = sorted({version.name for version in self.versions()})
        if reference.name in names:
            return f"{self.place} has no version {reference}; `diffuserve models list` shows those it has"
        hint = did_you_mean(reference.name, names)
        return f"{self.place} has no model {reference.name!r}{hint}; `diffuserve models list` shows all"


def open_models(url: str) -> ModelBucket:
    """Open the store at `s3://bucket/prefix`, `gs://bucket/prefix` or `file:///folder`.

    Buckets take region, endpoint and credentials from the environment variables of their own tools
    (`AWS_*`, `GOOGLE_*`). Raise `InvalidParams` for another URL or an invalid configuration.
    """
    return ModelBucket(*open_place(url, _SETTING))


def open_place(url: str, setting: str) -> tuple[ObjectStore, str]:
    """Open the bucket or folder of a URL; return it with its URL for messages.

    Raise `InvalidParams`, which names the setting, as `open_models`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        return _folder(Path(unquote(parts.path)), setting), url
    if parts.scheme not in SCHEMES or not parts.netloc or parts.username:
        raise InvalidParams(setting, url, "give s3://bucket/prefix, gs://bucket/prefix or file:///folder")
    prefix = parts.path.strip("/") or None
    place = f"{parts.scheme}://{parts.netloc}/{prefix or ''}".rstrip("/")
    return open_bucket(parts.scheme, parts.netloc, prefix, setting), place


def _folder(folder: Path, setting: str) -> LocalStore:
    """Open a folder, which is created where need be. Raise `InvalidParams`."""
    with refused_if_unusable(folder, setting):
        folder.mkdir(parents=True, exist_ok=True)
        return LocalStore(prefix=folder)


def _version_of(found: StoredObject) -> Version | None:
    """Return the version that a key publishes; `None` for a file of another origin."""
    _, _, rest = found.key.partition("/")
    name, _, version = rest.partition("/")
    if not is_reference(name) or not SHA256.fullmatch(version):
        return None
    return Version(found.changed_at, name, version)

"""Publication of models in a bucket; verification, removal and collection of garbage keep it sound."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from diffuserve.domain.errors import InvalidModel, ServerUnavailable
from diffuserve.modelstore.bucket import ModelBucket, StoredObject, Version
from diffuserve.modelstore.layout import MODELS, NAMES, file_key, folder_key, manifest_key, name_key
from diffuserve.modelstore.manifest import Manifest, ModelFile
from diffuserve.modelstore.spans import CONNECTIONS, PieceRange, damaged_pieces, spans_of

Report = Callable[[int], None]
_PART_BYTES = 8 * 1024 * 1024
_ATTEMPTS = 3
_MARK = "pushing"  # it marks the folder as recent, so that its objects are not collected


def push(bucket: ModelBucket, folder: Path, manifest: Manifest, report: Report = lambda _: None) -> None:
    """Publish a model: its files, then its manifest, then its name; existing files are kept.

    Several processes may push at once. Raise `InvalidModel` if a file no longer matches the manifest, and
    `ServerUnavailable` if another process keeps removing the files.
    """
    mark = f"{folder_key(manifest.hash)}/{_MARK}"
    for _ in range(_ATTEMPTS):
        bucket.put(mark, b"\n")
        missing = bucket.missing(manifest)
        report(manifest.num_bytes - sum(file.size for file in missing))
        for file in missing:
            bucket.put(file_key(manifest, file), _checked(folder / file.path, file, report))
        bucket.publish(manifest)
        if not bucket.missing(manifest):  # a removal at the same time may have taken some away
            bucket.delete([mark])
            return
        report(-manifest.num_bytes)
    raise ServerUnavailable(
        f"{manifest.reference}: files vanish from {bucket.place} while they are pushed; is another program "
        "removing this model?"
    )


def _checked(path: Path, file: ModelFile, report: Report) -> Iterator[bytes]:
    """Yield a file's content; raise `InvalidModel` before its end if it does not match the manifest."""
    digest, size, held = hashlib.sha256(), 0, b""
    with path.open("rb", buffering=0) as content:
        while part := content.read(_PART_BYTES):
            if held:
                yield held
            digest.update(part)
            size, held = size + len(part), part
            report(len(part))
    if size != file.size or digest.hexdigest() != file.sha256:
        raise InvalidModel(f"{path}: was changed while it was pushed; push again")
    yield held


@dataclass(frozen=True)
class Damage:
    """A part of a file that does not match its manifest."""

    path: str
    offset: int
    problem: str


def verify(bucket: ModelBucket, manifest: Manifest, report: Report = lambda _: None) -> list[Damage]:
    """Read every byte of a model and return its damaged parts.

    Raise `ServerUnavailable` if the bucket does not respond, and `ModelNotFound` if the model is removed
    meanwhile.
    """

    def look(span: PieceRange) -> list[Damage]:
        content = bucket.read(manifest, span.file, span.bytes)
        report(len(content))
        return [
            Damage(span.file.path, piece.offset, "differs from the manifest")
            for piece in damaged_pieces(span, content)
        ]

    short = set(bucket.missing(manifest))
    wrong_size = [Damage(file.path, 0, "is missing, or has another size") for file in short]
    whole = [span for span in spans_of(manifest.pieces) if span.file not in short]
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        found = [damage for damages in threads.map(look, whole) for damage in damages]
    return sorted([*wrong_size, *found], key=lambda damage: (damage.path, damage.offset))


def remove(bucket: ModelBucket, version: Version) -> int:
    """Remove a version, its name first, so that it is never found incomplete. Return the bytes freed.

    Workers that have it in their caches keep it; one that is fetching it fails with `ModelNotFound`.
    """
    bucket.delete([name_key(version.name, version.hash), manifest_key(version.hash)])
    found = bucket.objects(folder_key(version.hash))
    bucket.delete(stored.key for stored in found)
    return sum(stored.size for stored in found)


@dataclass(frozen=True)
class Garbage:
    """Objects that belong to no published model."""

    keys: tuple[str, ...]
    num_bytes: int


def find_garbage(objects: list[StoredObject], before: datetime) -> Garbage:
    """Return the objects that belong to no published model and were not changed since `before`.

    An interrupted push, or a removal, leaves files without a name; a name without a manifest is stale too.
    """
    folders = defaultdict[str, list[StoredObject]](list)
    for stored in objects:
        if stored.key.startswith(f"{MODELS}/"):
            folders[stored.key.split("/")[1]].append(stored)
    names = [stored for stored in objects if stored.key.startswith(f"{NAMES}/")]
    manifests = {stored.key for stored in objects}
    published = {stored.key.rpartition("/")[2] for stored in names}
    stale = [
        stored
        for stored in names
        if manifest_key(stored.key.rpartition("/")[2]) not in manifests and stored.changed_at < before
    ]
    orphans = [
        stored
        for version, held in folders.items()
        if version not in published and max(stored.changed_at for stored in held) < before
        for stored in held
    ]
    found = [*stale, *orphans]
    return Garbage(tuple(stored.key for stored in found), sum(stored.size for stored in found))


def collect_garbage(bucket: ModelBucket, now: datetime, older_than: timedelta) -> Garbage:
    """Delete objects that belong to no published model and were not changed for some time; return them."""
    garbage = find_garbage([*bucket.objects(NAMES), *bucket.objects(MODELS)], now - older_than)
    bucket.delete(garbage.keys)
    return garbage

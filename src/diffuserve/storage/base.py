"""The interface of artifact stores.

They hold finished files under `{job_id}/{lease_token}/{name}`, and uploaded images under `input_key`.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from diffuserve.domain.workers.worker import LATENTS_NAME
from diffuserve.media.sound_file import SOUND_FORMATS
from diffuserve.media.video_file import VIDEO_FORMATS

_IMAGES = {".png": "image/png", ".webp": "image/webp", ".jpeg": "image/jpeg", ".jpg": "image/jpeg"}
_CLIPS = {known.suffix: known.media_type for known in VIDEO_FORMATS.values()}
_SOUNDS = {known.suffix: known.media_type for known in SOUND_FORMATS.values()}
_CONTENT_TYPES = _IMAGES | _CLIPS | _SOUNDS | {".jsonl": "application/jsonl"}


INPUTS = "inputs"
"""Folder of uploaded files; no job has this id."""


def input_folder(file_id: str) -> str:
    """Return the folder of an uploaded image, which holds nothing else."""
    return f"{INPUTS}/{file_id}"


def input_key(file_id: str) -> str:
    """Return the key of an uploaded image."""
    return f"{input_folder(file_id)}/image.png"


def lines_key(file_id: str) -> str:
    """Return the key of the JSON lines that a batch reads, or has written."""
    return f"{input_folder(file_id)}/lines.jsonl"


def latents_key(job_id: str, lease_token: int) -> str:
    """Return the key of a job's finished latents; no client gets a URL for them."""
    return f"{job_id}/{lease_token}/{LATENTS_NAME}"


def checkpoint_folder(job_id: str, lease_token: int) -> str:
    """Return the folder of a lease's checkpoints, which holds nothing else; no client gets a URL of them."""
    return f"{job_id}/{lease_token}/checkpoint"


def checkpoint_key(job_id: str, lease_token: int, slot: int) -> str:
    """Return the key of a job's checkpoint."""
    return f"{checkpoint_folder(job_id, lease_token)}/{slot}.safetensors"


def content_type_of(name: str) -> str:
    """Return the media type of the file name's suffix."""
    return _CONTENT_TYPES.get(PurePosixPath(name).suffix.lower(), "application/octet-stream")


@dataclass(frozen=True)
class UploadedFile:
    """A complete file on durable storage."""

    key: str
    size_bytes: int
    sha256: str


class ArtifactStore(Protocol):
    """Finished files by key. Writes are atomic.

    Every method raises `ServerUnavailable` if the store is unavailable after its retries, `StorageRefused`,
    which is one too, if it has no such bucket or refuses access, and `ArtifactNotFound` for an invalid key.
    """

    place: str
    """Where the files are, for the messages of operators; it holds no secret."""

    signs_urls: bool
    """True if clients and workers access the store directly, by URLs that it signs."""

    async def put(self, key: str, chunks: AsyncIterator[bytes], max_bytes: int) -> UploadedFile:
        """Store a file, replacing an earlier one of that key. Raise `TooLarge` beyond `max_bytes`."""
        ...

    async def put_all(self, files: Mapping[str, bytes]) -> None:
        """Store small files by their keys, replacing earlier ones of those keys."""
        ...

    async def download_url(self, key: str, seconds: float) -> str | None:
        """Return a URL that serves the file by GET for `seconds`; `None` if the store signs no URLs."""
        ...

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return a URL that accepts the file by PUT for `seconds`; `None` if the store signs no URLs."""
        ...

    async def size(self, key: str) -> int:
        """Return the size in bytes. Raise `ArtifactNotFound` if there is no such file."""
        ...

    def read(self, key: str, part: range | None = None) -> AsyncIterator[bytes]:
        """Yield the content in chunks, or only the byte range `part`, which must not be empty.

        Raise `ArtifactNotFound` if there is no such file.
        """
        ...

    async def delete(self, prefix: str) -> None:
        """Delete every file under the folder `prefix`, which need not exist."""
        ...

    async def attempts(self, older_than_seconds: float) -> list[tuple[str, int]]:
        """Return `(job_id, lease_token)` of the folders that were not changed for `older_than_seconds`."""
        ...

    async def inputs(self, older_than_seconds: float) -> list[str]:
        """Return the ids of the uploaded images whose folders were not changed for `older_than_seconds`."""
        ...

"""Test of an artifact store: a tiny file is stored, found and deleted."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from diffuserve.domain.errors import ArtifactNotFound, ServerUnavailable, StorageRefused
from diffuserve.storage.base import ArtifactStore

_CONTENT = b"diffuserve"
_NEEDED = "put, get, list and delete objects under the prefix"


async def probe(store: ArtifactStore) -> None:
    """Store, find and delete a tiny file.

    Raise `StorageRefused` if the place is wrong or its credentials do not suffice, else `ServerUnavailable`.
    The message names the place, the failed action and the remedy.
    """
    folder = f"probe-{secrets.token_hex(8)}"  # cannot be the name of a job
    key = f"{folder}/file"
    with _explained(store, "put"):
        await store.put(key, _content(), len(_CONTENT))
    with _explained(store, "get"):
        await store.size(key)
    with _explained(store, "list or delete"):
        await store.delete(folder)


async def _content() -> AsyncIterator[bytes]:
    yield _CONTENT


@contextmanager
def _explained(store: ArtifactStore, action: str) -> Iterator[None]:
    """Add the place, the action and the remedy to an error."""
    failed = f"cannot {action} a file in {store.place}"
    try:
        yield
    except ArtifactNotFound as error:
        raise StorageRefused(f"{failed}: it is gone at once; is another program deleting files?") from error
    except StorageRefused as error:
        remedy = _remedy(store.place, is_missing=error.is_missing)
        raise StorageRefused(f"{failed}: {error}; {remedy}", is_missing=error.is_missing) from error
    except ServerUnavailable as error:
        raise ServerUnavailable(f"{failed}: {error}; {_way_to(store.place)}") from error


def _remedy(place: str, *, is_missing: bool) -> str:
    if is_missing:
        return "create it, or correct DIFFUSERVE_ARTIFACTS_URL" + _address_of(place)
    if place.startswith("s3://"):
        return (
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, "
            f"and that they are allowed to {_NEEDED}"
        )
    if place.startswith("gs://"):
        return f"check GOOGLE_SERVICE_ACCOUNT, and that it is allowed to {_NEEDED}"
    return "let the user of this process write into the folder, or name another in DIFFUSERVE_ARTIFACTS_URL"


def _way_to(place: str) -> str:
    """Return what to check if a store does not respond."""
    if place.startswith("s3://"):
        return "check AWS_ENDPOINT_URL, AWS_REGION, the credentials (AWS_ACCESS_KEY_ID …) and the network"
    if place.startswith("gs://"):
        return "check GOOGLE_SERVICE_ACCOUNT and the network"
    return "make room on the disk, or name another folder in DIFFUSERVE_ARTIFACTS_URL"


def _address_of(place: str) -> str:
    return ", AWS_REGION or AWS_ENDPOINT_URL" if place.startswith("s3://") else ""

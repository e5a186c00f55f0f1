"""The factory of artifact stores."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import Access, make_private_folder
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.local import LocalArtifactStore


def open_artifacts(url: str, access: Access = Access.OWNER) -> ArtifactStore:
    """Open the store at `file:///folder`, `s3://bucket/prefix` or `gs://bucket/prefix`.

    Buckets take region, endpoint and credentials from the environment variables of their own tools
    (`AWS_*`, `GOOGLE_*`). Raise `InvalidParams` for another URL, an invalid configuration, or a folder that
    others than `access` allows can enter.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder = Path(unquote(parts.path)).resolve()
        make_private_folder(folder, access, "artifacts_url")
        return LocalArtifactStore(folder)
    if parts.scheme not in ("s3", "gs") or not parts.netloc:
        raise InvalidParams(
            "artifacts_url", url, "give file:///folder, s3://bucket/prefix or gs://bucket/prefix"
        )
    return _open_bucket(parts.scheme, parts.netloc, parts.path.strip("/") or None)


def _open_bucket(scheme: str, name: str, prefix: str | None) -> ArtifactStore:
    """Open a bucket; `obstore` is imported only here, since most servers use a folder."""
    from diffuserve.remote.buckets import open_bucket
    from diffuserve.storage.bucket import BucketArtifactStore

    place = f"{scheme}://{name}/{prefix or ''}".rstrip("/")
    return BucketArtifactStore(open_bucket(scheme, name, prefix, "artifacts_url"), place)

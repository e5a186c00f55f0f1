"""The factory of artifact stores."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import Access, make_private_folder
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.local import LocalArtifactStore

if TYPE_CHECKING:
    from obstore.store import RetryConfig

# With retries an unavailable bucket fails within 25 s, before a worker's request to the control plane times
# out. They are not `client_options`, which would override the environment's TLS and proxy settings.
TIME_LIMITS: Any = {"connect_timeout": "3s", "read_timeout": "15s", "timeout": "60s"}
RETRIES: "RetryConfig" = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}


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
    from obstore.exceptions import BaseError
    from obstore.store import GCSStore, S3Store

    from diffuserve.storage.bucket import BucketArtifactStore

    place = f"{scheme}://{name}/{prefix or ''}".rstrip("/")
    try:
        if scheme == "gs":
            gcs = GCSStore(name, prefix=prefix, config=TIME_LIMITS, retry_config=RETRIES)
            return BucketArtifactStore(gcs, place)
        s3 = S3Store(
            name,
            prefix=prefix,
            config=TIME_LIMITS,
            checksum_algorithm="SHA256",
            retry_config=RETRIES,
        )
        return BucketArtifactStore(s3, place)
    except BaseError as error:
        raise InvalidParams("artifacts_url", f"{scheme}://{name}", str(error).splitlines()[0]) from error

"""Buckets of S3, of an S3-compatible store, or of Google Cloud Storage: opened, and their errors in words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store

from diffuserve.domain.errors import (
    ArtifactNotFound,
    DiffuserveError,
    InvalidParams,
    ServerUnavailable,
    StorageRefused,
)

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
SCHEMES = ("s3", "gs")
_NO_BUCKET = "NoSuchBucket"
_NO_TLS = "BadScheme"  # of an address with http://, before a request is sent
_METADATA_SERVICE = "http://169.254.169.254"  # asked for credentials if nothing else provides them
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_SERVER = re.compile(r"performing [A-Z]+ (https?://[^/\s]+)")
_NOT_ALLOWED = re.compile(r"Permission denied|Read-only file system")  # for a folder used as a bucket


def open_bucket(scheme: str, name: str, prefix: str | None, setting: str) -> S3Store | GCSStore:
    """Open a bucket of one of the `SCHEMES`, with what the environment of its own tools says (`AWS_*` …).

    Raise `InvalidParams`, which names the setting, for an invalid configuration.
    """
    try:
        if scheme == "gs":
            return GCSStore(name, prefix=prefix, config=TIME_LIMITS, retry_config=RETRIES)
        return S3Store(
            name, prefix=prefix, config=TIME_LIMITS, checksum_algorithm="SHA256", retry_config=RETRIES
        )
    except BaseError as error:
        raise InvalidParams(setting, f"{scheme}://{name}", str(error).splitlines()[0]) from error


@contextmanager
def translated(store: str, key: str | None = None) -> Iterator[None]:
    """Raise the package's own errors in place of the bucket's; `store` is what it keeps.

    Without the `key` of an object to be read, nothing but the bucket can be missing.
    """
    try:
        yield
    except (FileNotFoundError, BaseError) as error:
        raise bucket_error(error, store, key) from error


def bucket_error(error: Exception, store: str, key: str | None) -> DiffuserveError:
    """Return the package's own error. Some errors of the library tell the response in their text alone."""
    text = str(error)
    code = _found(_CODE, text)
    if key is not None and isinstance(error, FileNotFoundError) and code != _NO_BUCKET:
        return ArtifactNotFound(f"no file {key}")
    status, server = _found(_STATUS, text), _found(_SERVER, text)
    if _NO_TLS in text:
        return InvalidParams(
            "AWS_ENDPOINT_URL", server, "it has no TLS: use https, or set AWS_ALLOW_HTTP=true"
        )
    if server == _METADATA_SERVICE:
        return _without_credentials(store, status)
    if status == "404":
        return StorageRefused(f"the {store} store {server} has no such bucket", is_missing=True)
    if status in ("401", "403"):
        return StorageRefused(f"the {store} store {server} refuses access ({code or status})")
    if _NOT_ALLOWED.search(text):
        return StorageRefused(f"the {store} store refuses access: {text.splitlines()[0]}")
    return ServerUnavailable(f"the {store} store is unavailable: {text.splitlines()[0]}")


def _without_credentials(store: str, status: str) -> ServerUnavailable:
    """Return the error of a machine that has no credentials, or whose cloud does not give them now."""
    told = (
        f"the {store} store is unavailable: there are no credentials in the environment, and the machine's "
    )
    if status.startswith("4"):
        return StorageRefused(f"{told}metadata service gives none ({status})")
    return ServerUnavailable(f"{told}metadata service does not respond")


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""

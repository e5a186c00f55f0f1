"""URLs that open finished files without a key."""

import time
import zlib
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from diffuserve.api.files.signing import UrlSigner
from diffuserve.domain.errors import DiffuserveError
from diffuserve.storage.base import ArtifactStore


class FileUrls:
    """Builds URLs below the public base URL if there is one, else signed by the store, else by this server.

    The public base URL serves the store's own folder, so URLs below it end with the file's key.
    """

    def __init__(self, artifacts: ArtifactStore, signer: UrlSigner, public_base_url: str | None) -> None:
        self._artifacts = artifacts
        self._signer = signer
        self._public_base_url = public_base_url and public_base_url.rstrip("/")

    async def url(self, job_id: str, lease_token: int, name: str, base_url: str, sha256: str = "") -> str:
        """Return a URL of the file; `base_url` is this server's own."""
        external = await self.external_url(job_id, lease_token, name)
        return external or base_url + await self._signer.path(job_id, lease_token, name, sha256)

    async def external_url(self, job_id: str, lease_token: int, name: str) -> str | None:
        """Return the file's URL on another server, `None` if this server serves it."""
        key = f"{job_id}/{lease_token}/{name}"
        if self._public_base_url:
            return f"{self._public_base_url}/{quote(key)}"
        return await self._artifacts.download_url(key, self._signer.valid_seconds)

    def tag(self) -> str:
        """Return a tag that changes before the URLs built so far expire."""
        if self._public_base_url:
            return f"{zlib.crc32(self._public_base_url.encode()):x}"
        return str(int(time.time() // (self._signer.valid_seconds / 2)))


class MediaOrigins:
    """Origins of finished files beside the page's own: that of a bucket, of a CDN, or the public one."""

    def __init__(self, urls: FileUrls, public_api_url: str | None) -> None:
        self._urls = urls
        self._public = _origins(public_api_url)
        self._origins: Sequence[str] | None = None

    async def get(self) -> Sequence[str]:
        """Return the origins; the store is asked until it has signed a URL once."""
        if self._origins is None:
            try:
                example = await self._urls.external_url("job_0", 0, "0.png")
            except DiffuserveError:
                return self._public  # the store is unavailable, and so are its files
            self._origins = tuple(dict.fromkeys((*self._public, *_origins(example))))
        return self._origins


def _origins(url: str | None) -> tuple[str, ...]:
    """Return the origin of a URL, if it has one that a policy of a page may name."""
    parts = urlsplit(url or "")
    is_nameable = parts.scheme in {"http", "https"} and not set(parts.netloc) & set(" ;,'\"")
    return (f"{parts.scheme}://{parts.netloc}",) if parts.netloc and is_nameable else ()

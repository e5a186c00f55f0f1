"""Uploaded images, as the API writes them. Times are RFC 3339 strings."""

from dataclasses import dataclass, field

from diffuserve.domain.resources.base import Page, Resource
from diffuserve.domain.resources.safety import VerdictResource


@dataclass(frozen=True, kw_only=True)
class FileResource(Resource):
    """Uploaded image, which jobs name by its id."""

    id: str
    filename: str = field(metadata={"description": "The client's own name for it."})
    content_type: str = field(metadata={"description": "Of the stored file, which holds pixels alone."})
    bytes: int = field(metadata={"description": "Size of the stored file."})
    width: int
    height: int
    sha256: str = field(metadata={"description": "Of the stored file, in hexadecimal."})
    verdict: VerdictResource | None = field(
        metadata={"description": "The image filter's; null without one. A blurred image is stored blurred."}
    )
    created_at: str
    expires_at: str = field(metadata={"description": "It stays for longer while a job needs it."})


@dataclass(frozen=True, kw_only=True)
class FilePage(Page):
    """Page of the caller's files, newest first."""

    data: tuple[FileResource, ...]

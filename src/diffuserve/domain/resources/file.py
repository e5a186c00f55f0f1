"""Files, as the API writes them: OpenAI's fields, with times in Unix seconds, and our own."""

from dataclasses import dataclass, field
from typing import Literal

from diffuserve.domain.jobs.input_file import FilePurpose
from diffuserve.domain.resource_base import Page, Resource
from diffuserve.domain.resources.safety import VerdictResource


@dataclass(frozen=True, kw_only=True)
class FileResource(Resource):
    """Uploaded image, which jobs name by its id, or the lines that a batch reads or has written."""

    id: str
    object: Literal["file"] = "file"
    purpose: FilePurpose = FilePurpose.VISION
    status: Literal["processed"] = "processed"
    filename: str = field(metadata={"description": "The client's own name for it."})
    content_type: str = field(metadata={"description": "Of the stored file, which holds pixels alone."})
    bytes: int = field(metadata={"description": "Size of the stored file."})
    width: int | None = field(metadata={"description": "Of an image; null for lines."})
    height: int | None
    sha256: str = field(metadata={"description": "Of the stored file, in hexadecimal."})
    verdict: VerdictResource | None = field(
        metadata={"description": "The image filter's; null without one. A blurred image is stored blurred."}
    )
    created_at: int
    expires_at: int = field(metadata={"description": "It stays for longer while a job or a batch needs it."})


@dataclass(frozen=True, kw_only=True)
class DeletedFile(Resource):
    """Answer to the deletion of a file."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


@dataclass(frozen=True, kw_only=True)
class FilePage(Page):
    """Page of the caller's files, newest first."""

    data: tuple[FileResource, ...]

"""Files that tenants upload, as the control plane keeps them: images for their jobs, and lines of batches."""

import re
from dataclasses import dataclass
from enum import StrEnum

from diffuserve.domain.requests.input_image import InputImage, Mode
from diffuserve.domain.safety import Verdict
from diffuserve.domain.text.timed_ids import timed_id

_ID = re.compile(r"file-[0-9a-f]{26}")

CONTENT_TYPE = "image/png"
"""Type of every stored image: what is uploaded is decoded, and its pixels alone are stored."""
LINES_CONTENT_TYPE = "application/jsonl"
"""Type of the files of batches: JSON lines."""


class FilePurpose(StrEnum):
    """What a file is for, in OpenAI's words: an image, or the lines that a batch reads or has written."""

    VISION = "vision"
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file that is stored, but has no row yet: an image that was decoded and judged, or JSON lines.

    `filename` is the client's own name for it, `sha256` that of the stored file, in hexadecimal. `verdict` is
    the image filter's, `None` without a filter. Lines have no `width` and `height`: they are 0.
    """

    id: str
    tenant_id: str
    filename: str
    size_bytes: int
    width: int
    height: int
    sha256: str
    verdict: Verdict | None = None
    purpose: FilePurpose = FilePurpose.VISION

    @property
    def is_image(self) -> bool:
        """True for an image, which jobs name; false for the lines of a batch."""
        return self.purpose is FilePurpose.VISION


@dataclass(frozen=True, kw_only=True)
class InputFile(NewFile):
    """A file of a tenant. Times are seconds since the epoch."""

    created_at: float
    expires_at: float

    def as_input(self, mode: Mode = "RGB") -> InputImage:
        """Return the image, without its pixels, as the parameters of a job name it."""
        return InputImage(self.id, self.width, self.height, mode)


def new_file_id() -> str:
    return timed_id("file-")


def is_file_id(text: str) -> bool:
    """Return whether a file could have this id."""
    return _ID.fullmatch(text) is not None

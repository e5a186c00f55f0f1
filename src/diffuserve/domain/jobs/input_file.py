"""Images that tenants upload for their jobs, as the control plane keeps them."""

import re
from dataclasses import dataclass

from diffuserve.domain.requests.input_image import InputImage, Mode
from diffuserve.domain.safety import Verdict
from diffuserve.domain.text.timed_ids import timed_id

_ID = re.compile(r"file-[0-9a-f]{26}")

CONTENT_TYPE = "image/png"
"""Type of every stored file: what is uploaded is decoded, and its pixels alone are stored."""


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """An image that was decoded, judged and stored as a file, but has no row yet.

    `filename` is the client's own name for it, `sha256` that of the stored file, in hexadecimal. `verdict` is
    the image filter's, `None` without a filter.
    """

    id: str
    tenant_id: str
    filename: str
    size_bytes: int
    width: int
    height: int
    sha256: str
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True)
class InputFile(NewFile):
    """An uploaded image. Times are seconds since the epoch."""

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

"""Images that `--image` and other options name: read here, or sent to a server."""

import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra, missing_module
from diffuserve.domain.jobs.input_file import is_file_id
from diffuserve.domain.requests.image_fields import mode_of
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams

_URL = re.compile(r"https?://", re.IGNORECASE)
_DATA_URL = re.compile(r"data:", re.IGNORECASE)
_DOWNLOAD_SECONDS = 30.0


def image_input(values: Sequence[str] | None) -> str | tuple[ImageInput, ...] | None:
    """Return the images of an option that may be repeated as the parameters of a request hold them."""
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def is_url(value: str) -> bool:
    """Return whether an image is named by an http, https or data URL."""
    return bool(_URL.match(value) or _DATA_URL.match(value))


def read_images(requests: Sequence[GenerationParams]) -> list[GenerationParams]:
    """Return the requests with the pixels of their images, each of which is read once.

    Raise `InvalidParams` for what cannot be read or is no image.
    """
    read = cache(_read)
    return [request.with_images(read) for request in requests]


def check_images(params: GenerationParams) -> None:
    """Raise `InvalidParams` for a local file that cannot be read or is no image."""
    for field, value in dict.fromkeys(params.input_images):
        if isinstance(value, str) and is_local(value):
            check_image(field, value)


def check_image(field: str, path: str) -> None:
    """Raise `InvalidParams` for a file that is no image, where images can be read; a server says so too."""
    if missing_module(Extra.PICTURES) is None:
        _read(field, path)


def is_local(value: str) -> bool:
    """Return whether a value is the path of a file, and not a URL or the id of an uploaded image."""
    return not is_url(value) and (Path(value).exists() or not is_file_id(value))


def _read(field: str, value: ImageInput) -> InputImage:
    from diffuserve.media.input_image import load_input, read_image  # Pillow, after the options

    if isinstance(value, str) and is_url(value):
        content = _data(field, value) if _DATA_URL.match(value) else _download(field, value)
        return read_image(field, io.BytesIO(content), mode_of(field), name=value)
    return load_input(field, value)


def _data(field: str, url: str) -> bytes:
    """Return what a data URL holds."""
    import base64
    import binascii

    head, _, text = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError("it is not in base64")
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        remedy = f"is no data URL ({error}); give data:image/png;base64,…"
        raise InvalidParams(field, head, remedy) from error


def _download(field: str, url: str) -> bytes:
    """Return the file at a URL, up to the largest that is read."""
    import httpx

    from diffuserve.media.input_image import MAX_INPUT_BYTES

    content = bytearray()
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=_DOWNLOAD_SECONDS) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_INPUT_BYTES:
                    raise InvalidParams(field, url, f"is larger than {MAX_INPUT_BYTES:,} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidParams(field, url, f"cannot be downloaded ({reason}); give a path") from error
    return bytes(content)

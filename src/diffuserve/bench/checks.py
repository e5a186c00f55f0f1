"""Outputs are looked at: a fast server that sends black squares of another size is not fast."""

import io

from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.outcomes import Output, RequestFault, Trouble

_CLIPS = (b"ftyp", b"\x1aE\xdf\xa3", b"GIF8", b"RIFF")
"""What MP4 has at its fifth byte, and WebM, GIF and animated WebP at their first."""


def check_outputs(asked: LoadRequest, outputs: tuple[Output, ...]) -> None:
    """Raise `RequestFault` unless the outputs are as many as asked, and each is what was asked for."""
    if len(outputs) != asked.num_outputs:
        raise _wrong(f"{len(outputs)} instead of {asked.num_outputs}")
    for output in outputs:
        if asked.kind is LoadKind.CLIP:
            _check_clip(output.content)
        else:
            _check_image(asked, output.content)


def _check_clip(content: bytes) -> None:
    if not any(content[:12].find(sign) in (0, 4) for sign in _CLIPS):
        raise _wrong("no clip")


def _check_image(asked: LoadRequest, content: bytes) -> None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            image.draft("L", (64, 64))  # a JPEG is decoded at an eighth of its size, which is enough here
            darkest, brightest = image.convert("L").resize((64, 64)).getextrema()
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise _wrong("no image") from error
    if asked.width and asked.height and (width, height) != (asked.width, asked.height):
        raise _wrong(f"{width}x{height} instead of {asked.width}x{asked.height}")
    if darkest == brightest:
        raise _wrong("one color alone")


def _wrong(detail: str) -> RequestFault:
    return RequestFault(Trouble.WRONG_OUTPUT, detail)

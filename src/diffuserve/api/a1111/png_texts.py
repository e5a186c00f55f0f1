"""The line of parameters within a PNG, where AUTOMATIC1111's programs look for it. Pure."""

import struct
import zlib

_HEAD = b"\x89PNG\r\n\x1a\n"
_AFTER_SIZE = len(_HEAD) + 25  # the chunk IHDR comes first, and has 25 bytes
_KEYWORD = b"parameters"
_MAX_BYTES = 100_000  # of a text that is read
_MAX_CHUNKS = 1_000


def with_parameters(png: bytes, text: str) -> bytes:
    """Return a PNG with a text; what is no PNG stays as it is."""
    if not png.startswith(_HEAD):
        return png
    data = b"iTXt" + _KEYWORD + b"\0\0\0\0\0" + text.encode()
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return png[:_AFTER_SIZE] + chunk + png[_AFTER_SIZE:]


def parameters_in(png: bytes) -> str:
    """Return the text in a PNG, empty if there is none. Nothing is decompressed."""
    place = len(_HEAD)
    for _ in range(_MAX_CHUNKS if png.startswith(_HEAD) else 0):
        length, kind = int.from_bytes(png[place : place + 4], "big"), png[place + 4 : place + 8]
        keyword, _, text = png[place + 8 : place + 8 + min(length, _MAX_BYTES)].partition(b"\0")
        if keyword == _KEYWORD and kind == b"tEXt":
            return text.decode("latin-1")
        if keyword == _KEYWORD and kind == b"iTXt" and text[:1] == b"\0":
            return text[2:].split(b"\0", 2)[-1].decode("utf-8", "replace")
        place += length + 12
        if place >= len(png):
            break
    return ""

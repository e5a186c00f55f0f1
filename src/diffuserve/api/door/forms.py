"""Forms with files (`multipart/form-data`), parsed from bodies that have been received."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException

from diffuserve.api.door.json_route import unsupported_media_type
from diffuserve.api.door.upload import Body

FORM = "multipart/form-data"
MAX_FORM_BYTES = 65_536
"""Bytes of a form beside its files: texts, and the heads of parts."""

_MAX_PARTS = 64
_CHUNK_BYTES = 65_536


@dataclass(frozen=True)
class FormFile:
    """A file of a form: the field that it is in, its name, and where its content is in the form's body."""

    field: str
    name: str
    body: Body
    span: range

    @property
    def content(self) -> bytes:
        """The content, which is read as long as the body is held."""
        return self.body[self.span.start : self.span.stop]

    def chunks(self) -> Iterator[bytes]:
        """Yield the content piece by piece: a large one stays in the file of its body."""
        for start in range(self.span.start, self.span.stop, _CHUNK_BYTES):
            yield self.body[start : min(start + _CHUNK_BYTES, self.span.stop)]


@dataclass(frozen=True)
class Form:
    """A form: texts by field, as often as they were sent, and files in their order."""

    texts: Mapping[str, Sequence[str]]
    files: Sequence[FormFile]


def parse_form(request: Request, body: Body) -> Form:
    """Return the form in a body; it blocks for some milliseconds a megabyte.

    Raise `HTTPException` 415 for another content type, 400 for a form that is cut off or malformed, and 413
    for one of too many parts or too much text.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind.decode("latin-1") != FORM or not options.get(b"boundary"):
        raise unsupported_media_type(request, FORM)
    parts = _Parts(body)
    try:
        parser = MultipartParser(options[b"boundary"], parts.callbacks())  # type: ignore[arg-type]
        for start in range(0, len(body), _CHUNK_BYTES):
            parser.write(parts.chunk_at(start))
    except FormParserError as error:
        raise HTTPException(400, f"the form is malformed: {error}") from error
    if not parts.is_complete:
        raise HTTPException(400, "the form ends before its last boundary; send it again")
    return parts.form()


@dataclass
class _Parts:
    """The parts that the parser has found so far."""

    body: Body
    is_complete: bool = False
    _heads: list[dict[bytes, bytes]] = field(default_factory=list)
    _spans: list[range] = field(default_factory=list)
    _start: int = 0
    _chunk: bytes = b""
    _name: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._extend,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_end": self._end,
        }

    def chunk_at(self, start: int) -> bytes:
        """Return the chunk of the body that is parsed next."""
        self._start, self._chunk = start, self.body[start : start + _CHUNK_BYTES]
        return self._chunk

    def form(self) -> Form:
        texts: dict[str, list[str]] = {}
        files: list[FormFile] = []
        num_bytes = 0
        for head, span in zip(self._heads, self._spans, strict=True):
            _, options = parse_options_header(head.get(b"content-disposition", b""))
            name = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                shown = options[b"filename"].decode("utf-8", "replace")
                files.append(FormFile(name, shown, self.body, span))
                continue
            num_bytes += len(span)
            if num_bytes > MAX_FORM_BYTES:
                raise HTTPException(413, f"the texts of the form have more than {MAX_FORM_BYTES:,} bytes")
            content = self.body[span.start : span.stop]
            texts.setdefault(name, []).append(content.decode("utf-8", "replace"))
        return Form(texts, files)

    def _begin(self) -> None:
        if len(self._heads) == _MAX_PARTS:
            raise HTTPException(413, f"the form has more than {_MAX_PARTS} parts")
        self._heads.append({})
        self._spans.append(range(0))

    def _extend(self, data: bytes, start: int, end: int) -> None:
        """Extend the last part, whose data comes in pieces that follow one another.

        What might have been a boundary at the end of a chunk comes with the next one, and lies before that.
        """
        span, length = self._spans[-1], end - start
        first = self._start + start if data is self._chunk else self._start - length
        begin = span.start if span else first
        self._spans[-1] = range(begin, begin + len(span) + length)

    def _end_header(self) -> None:
        self._heads[-1][bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end(self) -> None:
        self.is_complete = True

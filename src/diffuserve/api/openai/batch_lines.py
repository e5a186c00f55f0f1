"""Lines of a batch's file: read one by one, and checked for what makes a line a request."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.domain.jobs.file_batch import FileError

MAX_LINES = 50_000
MAX_ERRORS = 100
"""Errors of one file that are told."""

_MAX_ID_CHARACTERS = 512
_METHOD = "POST"


@dataclass(frozen=True)
class FileLine:
    """A line that is not blank: its number in the file, counted from 1; `None` is one that is too long."""

    number: int
    content: bytes | None


@dataclass(frozen=True)
class LineRequest:
    """A request that a line describes: the client's own id for it, and the body for the batch's endpoint."""

    custom_id: str
    body: Mapping[str, Any]


async def lines_in(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[FileLine]:
    """Yield the lines of a file that are not blank; no more than one line and one chunk are in memory."""
    number, rest = 1, bytearray()
    async for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for piece in whole:
            rest += piece[: max_bytes + 1]
            for line in _line(number, rest, max_bytes):
                yield line
            number, rest = number + 1, bytearray()
        rest += last[: max(0, max_bytes + 1 - len(rest))]
    for line in _line(number, rest, max_bytes):
        yield line


def _line(number: int, content: bytearray, max_bytes: int) -> Iterator[FileLine]:
    if len(content) > max_bytes:
        yield FileLine(number, None)
    elif stripped := bytes(content).strip():
        yield FileLine(number, stripped)


@dataclass
class LineChecker:
    """Checks lines one after another; `errors` are those found so far, which make the file no batch."""

    endpoint: str
    max_line_bytes: int
    num_lines: int = 0
    errors: list[FileError] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    def check(self, line: FileLine) -> LineRequest | None:
        """Return the request of a line; `None` after noting what is wrong with it."""
        self.num_lines += 1
        try:
            request = request_in(line, self.endpoint, self.max_line_bytes)
        except LineError as error:
            self.errors.append(error.told)
            return None
        if request.custom_id in self._ids:
            message = (
                f"the custom_id {request.custom_id!r} is that of an earlier line; give each line its own"
            )
            self.errors.append(_error("duplicate_custom_id", line, message, "custom_id"))
            return None
        self._ids.add(request.custom_id)
        return request

    @property
    def is_hopeless(self) -> bool:
        """True once there are enough errors to tell, or more lines than a batch may have."""
        return len(self.errors) >= MAX_ERRORS or self.num_lines > MAX_LINES

    def found(self) -> list[FileError]:
        """Return why the file is no batch, once its lines are checked; nothing if it is one."""
        if self.num_lines > MAX_LINES:
            message = f"the file has more than {MAX_LINES:,} lines; send them in several batches"
            return [FileError(code="too_many_lines", message=message), *self.errors[: MAX_ERRORS - 1]]
        if not self.num_lines:
            return [FileError(code="empty_file", message="the file has no lines; write one request on each")]
        return self.errors


class LineError(ValueError):
    """Raised for a line that is no request of its batch."""

    def __init__(self, told: FileError) -> None:
        super().__init__(told.message)
        self.told = told


def request_in(line: FileLine, endpoint: str, max_bytes: int) -> LineRequest:
    """Return the request of a line. Raise `LineError`."""
    if line.content is None:
        raise LineError(
            _error("line_too_long", line, f"the line has more than {max_bytes:,} bytes; {_UPLOAD}")
        )
    try:
        values = parsed_json(line.content)
    except UnreadableJson as error:
        raise LineError(_error("invalid_json_line", line, f"the line {error}")) from error
    if not isinstance(values, dict):
        raise LineError(_error("invalid_json_line", line, "the line must be a JSON object"))
    for code, param, message in _faults(values, endpoint):
        raise LineError(_error(code, line, message, param))
    return LineRequest(values["custom_id"], values["body"])


_UPLOAD = "upload its images with POST /v1/files, and name their ids"


def _faults(values: Mapping[str, Any], endpoint: str) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a line: the code, the field and the message of each error."""
    for name in ("custom_id", "method", "url", "body"):
        if values.get(name) is None:
            yield "missing_required_parameter", name, f"{name} is required on each line"
    custom_id, method, url = values["custom_id"], values["method"], values["url"]
    if (
        not isinstance(custom_id, str)
        or not 1 <= len(custom_id) <= _MAX_ID_CHARACTERS
        or not _fits(custom_id)
    ):
        yield (
            "invalid_custom_id",
            "custom_id",
            f"custom_id must be a text of 1 to {_MAX_ID_CHARACTERS} characters",
        )
    if method != _METHOD:
        yield "invalid_method", "method", f"method must be {_METHOD}"
    if url != endpoint:
        yield "mismatched_url", "url", f"url must be the batch's endpoint, {endpoint}"
    if not isinstance(values["body"], dict):
        yield "invalid_body", "body", "body must be a JSON object"


def _fits(text: str) -> bool:
    """Return whether a database can store the text."""
    try:
        return "\0" not in text and bool(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _error(code: str, line: FileLine, message: str, param: str | None = None) -> FileError:
    return FileError(code=code, message=message, line=line.number, param=param)

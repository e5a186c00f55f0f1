"""The files of a form are found in its body wherever the chunks end in which it is parsed."""

import pytest
from starlette.requests import Request

from diffuserve.api.door import forms

BOUNDARY = b"--bound"
TRICKY = [
    b"",
    b"a\r\n--boun",
    b"\r\n\r\n--",
    b"\r\n-\r\n--\r\n--b\r\n--bo" * 9,
    bytes(range(256)),
]


def body(files: list[bytes]) -> bytes:
    parts = [
        b'\r\ncontent-disposition: form-data; name="file"; filename="%d"\r\n\r\n%s\r\n' % (number, content)
        for number, content in enumerate(files)
    ]
    text = b'\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    mark = b"--" + BOUNDARY
    return mark + mark.join([text, *parts]) + mark + b"--\r\n"


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 11, 1_000])
def test_files_are_where_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(forms, "_CHUNK_BYTES", chunk_bytes)
    header = (b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)
    form = forms.parse_form(Request({"type": "http", "headers": [header]}), body(TRICKY))
    assert form.texts == {"purpose": ["batch"]}
    assert [file.content for file in form.files] == TRICKY
    assert [b"".join(file.chunks()) for file in form.files] == TRICKY
    assert [len(file.span) for file in form.files] == list(map(len, TRICKY))

"""Media types of stored files."""

import pytest

from diffuserve.storage.base import content_type_of


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("0.png", "image/png"),
        ("job/1/0.JPG", "image/jpeg"),
        ("0.thumbnail.webp", "image/webp"),
        ("0.jpeg", "image/jpeg"),
        ("result", "application/octet-stream"),
        ("result.bin", "application/octet-stream"),
    ],
)
def test_the_suffix_decides_the_media_type(name: str, content_type: str) -> None:
    assert content_type_of(name) == content_type

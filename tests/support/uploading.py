"""Uploads of images to the API."""

from pathlib import Path
from typing import Any

import httpx


async def upload(
    http: httpx.AsyncClient, data: bytes, name: str = "photo.png", **options: Any
) -> httpx.Response:
    return await http.post("/v1/files", files={"file": (name, data)}, **options)


async def uploaded(http: httpx.AsyncClient, data: bytes, name: str = "photo.png") -> dict[str, Any]:
    response = await upload(http, data, name)
    assert response.status_code == 201, response.text
    file: dict[str, Any] = response.json()
    return file


def stored(folder: Path) -> list[Path]:
    return [path for path in (folder / "artifacts").rglob("*") if path.is_file()]

"""The places of results in a chaos run: a folder, or a bucket of S3 behind a door that can be shut."""

import asyncio
import hashlib
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.control.processes import Program, free_port

_CHUNK_BYTES = 1 << 16
_UPLOAD_SECONDS, _START_SECONDS = 30.0, 60.0
_NAME, _PREFIX = "chaos", "results"
_FAILURE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Digests = Mapping[str, str]
"""SHA-256 of the files by their keys, `{job}/{lease token}/{name}`."""


class ResultStore(Protocol):
    """The place where results of a run go, of which `environment` tells control planes."""

    environment: Mapping[str, str]

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def digests(self) -> Digests: ...


class FolderStore:
    """The folder that a control plane uses by itself."""

    def __init__(self, folder: Path) -> None:
        self.environment: Mapping[str, str] = {}
        self._folder = folder

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    async def digests(self) -> Digests:
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return {
            path.relative_to(self._folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }


class BucketStore:
    """A server of the S3 API as a process, which control planes and workers reach through a door."""

    def __init__(self, folder: Path) -> None:
        self._port = port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._program = Program("bucket", command, {}, folder / "bucket.log")
        self._url, self.door = f"http://127.0.0.1:{port}", Door(port)
        self.environment: Mapping[str, str] = {
            "DIFFUSERVE_ARTIFACTS_URL": f"s3://{_NAME}/{_PREFIX}",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.door.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any"),
        }

    async def start(self) -> None:
        self._program.start()
        await asyncio.to_thread(self._create)
        await self.door.open()

    async def stop(self) -> None:
        await self.door.shut()
        await asyncio.to_thread(self._program.stop)

    async def digests(self) -> Digests:
        return await asyncio.to_thread(self._digests)

    def _digests(self) -> Digests:
        client = self._client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=_NAME, Prefix=f"{_PREFIX}/")
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return {key.removeprefix(f"{_PREFIX}/"): _digest(client, key) for key in keys}

    def _create(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                break
            time.sleep(0.1)
        self._client().create_bucket(Bucket=_NAME)

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self._url,
            region_name="us-east-1",
            **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "any"),
        )


def _digest(client: Any, key: str) -> str:
    return hashlib.sha256(client.get_object(Bucket=_NAME, Key=key)["Body"].read()).hexdigest()


class Door:
    """A TCP proxy that can be shut: connections are refused then, or answered with 503."""

    def __init__(self, port: int) -> None:
        self.port, self._port = free_port(), port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_failing = False
        self._cut: asyncio.Event | None = None

    async def open(self) -> None:
        self._is_failing = False
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def shut(self) -> None:
        """Refuse connections from now on, and break those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._break_all()

    def fail(self) -> None:
        """Answer every request with 503 from now on."""
        self._is_failing = True
        self._break_all()

    async def cut_an_upload(self) -> None:
        """Break the next upload half-way."""
        self._cut = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(_UPLOAD_SECONDS):
                await self._cut.wait()
        self._cut = None

    def _break_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._is_failing:
                await reader.read(_CHUNK_BYTES)
                writer.write(_FAILURE)
                await writer.drain()
            else:
                await self._join(reader, writer)
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy both ways until either side closes."""
        back, out = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [asyncio.create_task(self._copy(reader, out)), asyncio.create_task(self._copy(back, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            out.close()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                if self._cut is not None and chunk.startswith(b"PUT "):
                    sink.write(chunk[: len(chunk) // 2])
                    self._cut.set()
                    return
                sink.write(chunk)
                await sink.drain()

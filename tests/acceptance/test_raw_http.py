"""A control plane's process against thousands of messages of honest and hostile clients, as raw bytes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from support.hand_worker import HandWorker
from support.hostile_http import Script, Scripts
from support.waiting import HANG_SECONDS

CONNECTIONS_AT_ONCE = 16
WARM_UP = 200  # messages, after which memory that is used once was used
MAX_STALL_SECONDS, MAX_GROWTH_BYTES = 0.05, 64 << 20


@dataclass
class WatchedServer:
    """The process of `support.watched_server`."""

    process: subprocess.Popen[str]
    facts: dict[str, str]

    @property
    def port(self) -> int:
        return int(self.facts["url"].rpartition(":")[2])

    def seen(self) -> Any:
        """Return what the server saw of its loop since the last call, and its memory."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(_line(self.process.stdout))


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


@dataclass(frozen=True)
class Answer:
    """A response: its status, and the id of the request that it answers; empty if the protocol answers."""

    status: int
    id: str
    headers: Mapping[bytes, bytes]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchedServer]:
    command = [sys.executable, "-m", "support.watched_server", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with process:
            yield WatchedServer(process, json.loads(_line(process.stdout)))
            process.communicate("")
    assert process.returncode == 0
    told = (tmp_path / "log").read_text()
    assert "Traceback" not in told, told[told.index("Traceback") - 500 :][:4_000]


async def watched_job(facts: dict[str, str]) -> str:
    """Return the id of a job that waits for a worker."""
    async with httpx.AsyncClient(base_url=facts["url"], trust_env=False, timeout=HANG_SECONDS) as http:
        http.headers["authorization"] = f"Bearer {facts['worker']}"
        await HandWorker.register(http)
        http.headers["authorization"] = f"Bearer {facts['tenant']}"
        job = await http.post("/v1/jobs", json={"input": {"prompt": "a"}})
        return str(job.raise_for_status().json()["id"])


@pytest.mark.parametrize(
    ("seed", "num_messages"), [(1, 400), pytest.param(2, 10_000, marks=pytest.mark.slow)]
)
async def test_no_bytes_make_the_server_fail_stall_grow_or_answer_the_wrong_request(
    server: WatchedServer, seed: int, num_messages: int
) -> None:
    keys = [server.facts["tenant"], server.facts["worker"]]
    scripts = Scripts(seed, keys, await watched_job(server.facts))
    await converse(server.port, scripts, WARM_UP)
    before = server.seen()
    await converse(server.port, scripts, num_messages)
    after = server.seen()
    assert after["stall"] < MAX_STALL_SECONDS
    assert after["memory"] - before["memory"] < MAX_GROWTH_BYTES


async def converse(port: int, scripts: Scripts, num_messages: int) -> None:
    """Send so many messages, by many connections at once, and check the answers of each."""
    free = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

    async def follow(script: Script) -> None:
        try:
            async with asyncio.timeout(HANG_SECONDS):
                answers = [answer async for answer in _answers(port, script)]
        finally:
            free.release()
        check(script, answers)

    async with asyncio.TaskGroup() as group:
        while num_messages > 0:
            await free.acquire()
            script = scripts.draw()
            num_messages -= script.num_messages
            group.create_task(follow(script))


def check(script: Script, answers: list[Answer]) -> None:
    """Raise `AssertionError` unless each request has its own answer, in order, and a fault ends them."""
    sent = b"".join(script.pieces)[-800:]
    told = f"{[(answer.status, answer.id) for answer in answers]} for {script.ids} at the end of {sent!r}"
    assert all(answer.status < 500 for answer in answers), told
    ids = [answer.id for answer in answers]
    if script.ends_in_fault and ids[-1:] in ([""], ["fault"]):
        ids.pop()
    is_whole = not script.is_cut
    assert ids == (script.ids if is_whole else script.ids[: len(ids)]), told


async def _answers(port: int, script: Script) -> AsyncIterator[Answer]:
    """Send a script, and yield what is answered until the server closes or the client goes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(_send(writer, script))
    try:
        while (answer := await _read_answer(reader)) is not None:
            yield answer
            if answer.headers.get(b"connection") == b"close":
                return
            if script.is_cut and sending.done():
                return
    finally:
        sending.cancel()
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, script: Script) -> None:
    for piece in script.pieces:
        writer.write(piece)
        await asyncio.sleep(0.001)
    if script.is_cut:
        writer.transport.abort()


async def _read_answer(reader: asyncio.StreamReader) -> Answer | None:
    """Return the next response that is final; `None` if the connection ends first."""
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            status = int(lines[0].split(b" ")[1])
            parts = (line.partition(b": ") for line in lines[1:-2])
            headers = {name.lower(): value for name, _, value in parts}
            if status != 100:
                break
        if status != 101:
            await reader.readexactly(int(headers[b"content-length"]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Answer(status, headers.get(b"x-request-id", b"").decode(), headers)

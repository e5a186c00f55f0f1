"""The HTTP tutorial and the page of the Python client, pasted block by block, with a real server."""

import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.settings import Settings
from support.diffuserve_process import is_ready, serving
from support.painting import PAINTER
from support.server_thread import ServerThread
from support.waiting import HANG_SECONDS, block_until

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorial-http.md"
OF_THE_CLIENT = DOCS / "how-to" / "use-the-python-client.md"
BLOCK = re.compile(r"^```(?P<kind>bash|python)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
ARTIST = replace(PAINTER, max_frames=17, temporal_stride=4, fps=16)
"""Makes clips too."""
ADDRESS, RECEIVER = "http://127.0.0.1:8000", "9000"


@pytest.fixture
def receiver_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(params=["by hand", pytest.param("tiny-flux", marks=pytest.mark.slow)])
def address(
    request: pytest.FixtureRequest, tmp_path: Path, receiver_port: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Yield the address of a server whose worker sends images of one pixel, or draws."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFUSERVE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DIFFUSERVE_WEBHOOK_ALLOWED_NETWORKS", '["127.0.0.0/8"]')
    monkeypatch.setenv("DIFFUSERVE_WEBHOOK_ALLOWED_PORTS", f"[{receiver_port}]")
    if request.param == "by hand":
        with ServerThread(Settings(port=0), spec=ARTIST) as server:
            block_until(lambda: is_ready(server.address))
            yield server.address
        return
    with serving("--device", "cpu", environment={}, log=tmp_path / "server.log") as served:
        yield served


def source(kind: str, address: str, receiver_port: str, page: Path = PAGE) -> str:
    """Return all blocks of a kind as one program."""
    blocks = [block["body"] for block in BLOCK.finditer(page.read_text("utf-8")) if block["kind"] == kind]
    assert blocks
    return "\n".join(blocks).replace(ADDRESS, address).replace(RECEIVER, receiver_port)


def test_every_block_runs(
    request: pytest.FixtureRequest, address: str, receiver_port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", source("bash", address, receiver_port)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout
    assert "event: succeeded" in shown
    assert '"code":"invalid_params"' in shown
    assert Path("circle.png").read_bytes().startswith(b"\x89PNG")
    program = compile(source("python", address, receiver_port), str(PAGE), "exec")
    exec(program, {"__name__": "tutorial"})
    made_a_clip = "17 frames at 16 a second" in capsys.readouterr().out
    assert made_a_clip == (request.node.callspec.params["address"] == "by hand")


def test_every_block_of_the_client_runs(
    address: str, receiver_port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = source("python", address, receiver_port, OF_THE_CLIENT)
    exec(compile(text, str(OF_THE_CLIENT), "exec"), {"__name__": "document"})
    shown = capsys.readouterr().out
    assert "width" in shown, "the refusal names its field"
    assert "item-1 succeeded" in shown
    assert "[0, 1, 2, 3]" in shown

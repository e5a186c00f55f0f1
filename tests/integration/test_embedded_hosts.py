"""The files that the documents show for other hosts, run by those hosts."""

import base64
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.environments import ROOT, environment
from support.ports import free_port
from support.waiting import HANG_SECONDS

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "how-to" / "embed-the-api.md"
CPU = {"OMP_NUM_THREADS": "1", "DIFFUSERVE_DEVICE": "cpu", "BENTOML_DO_NOT_TRACK": "True"}


def shown(first_line: str) -> str:
    """Return the block of the page that begins with this line."""
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    [block] = [each for each in blocks if each.startswith(first_line)]
    return str(block)


@contextmanager
def served(command: list[str], folder: Path, url: str) -> Iterator[httpx.Client]:
    """Run a host until the block ends, which begins when it responds."""
    own = {**CPU, "PYTHONPATH": str(ROOT / "src")}
    with (folder / "log").open("w") as log:
        host = subprocess.Popen(command, env=os.environ | own, cwd=folder, stdout=log, stderr=log)
    try:
        with httpx.Client(
            base_url=url, timeout=HANG_SECONDS, transport=httpx.HTTPTransport(retries=9)
        ) as client:
            yield client
    finally:
        host.terminate()
        host.wait(HANG_SECONDS)


def test_bentoml_serves_every_route(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(shown("import bentoml"))
    bentoml, port = environment("bentoml", ["bentoml==1.4.39"]) / "bin" / "bentoml", free_port()
    command = [str(bentoml), "serve", "service.py:Images", "--port", str(port)]
    with served(command, tmp_path, f"http://127.0.0.1:{port}") as client:
        body = {"prompt": "a star", "num_inference_steps": 1}
        image = client.post("/v1/images/generations", json=body).json()["data"][0]["b64_json"]
        assert len(base64.b64decode(image)) > 100
        refused = client.post("/v1/images/generations", json={"prompt": "a star", "size": "x"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "size")
        assert client.get("/v1/workers").json()["data"][0]["models"] == ["tiny-flux"]


def test_litserve_draws(tmp_path: Path) -> None:
    port = free_port()
    text = shown("import base64").replace("port=8000", f"port={port}, generate_client_file=False")
    (tmp_path / "server.py").write_text(text)
    with served([sys.executable, "server.py"], tmp_path, f"http://127.0.0.1:{port}") as client:
        drawn = client.post("/predict", json={"prompt": "a star", "steps": 1, "seed": 7}).json()
        assert base64.b64decode(drawn["images"][0]).startswith(b"\x89PNG")
        assert drawn["seeds"] == [7]
        refused = client.post("/predict", json={"prompt": "a star", "width": 7})
        assert refused.status_code == 422
        assert "width=7: tiny-flux generates" in refused.text

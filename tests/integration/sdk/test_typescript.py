"""The TypeScript client is made from the API as it is, and works with a real server."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import make_typescript
from diffuserve.version import __version__
from support.faulty_proxy import CutRequest, CutResponse, Fault, FaultyProxy, Respond
from support.server_thread import ServerThread

FAULTS: dict[str, Fault] = {"cut-request": CutRequest(), "cut-response": CutResponse(), "503": Respond(503)}
NPM_SECONDS = 300


@pytest.fixture(scope="module")
def package() -> Path:
    """Return the folder of the package with what it needs, and built."""
    if shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = make_typescript.PACKAGE
    if not (folder / "node_modules" / ".bin" / "tsc").exists():
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        if subprocess.run(command, cwd=folder, capture_output=True, timeout=NPM_SECONDS).returncode:
            pytest.skip("npm cannot fetch the packages that clients/typescript/package-lock.json names")
    subprocess.run(["npm", "run", "build"], cwd=folder, check=True, timeout=NPM_SECONDS)
    return folder


@pytest.fixture
def faults(proxy: FaultyProxy) -> Iterator[str]:
    """Yield the URL below which a test in another language names the proxy's next faults."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            proxy.fail_next(*(FAULTS[name] for name in self.path.strip("/").split(",")))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_types_and_operations_are_those_of_the_api() -> None:
    assert make_typescript.main(["--check"]) == 0, "run `make typescript`"


def test_the_package_has_the_version_of_the_server() -> None:
    described = json.loads((make_typescript.PACKAGE / "package.json").read_text("utf-8"))
    assert described["version"] == __version__


@pytest.mark.slow
def test_the_types_are_what_the_generator_makes(package: Path) -> None:
    document = make_typescript.of_clients(make_typescript.whole_document())
    made = make_typescript.head_of(document) + make_typescript.types_of(document)
    assert made == (package / "src" / "schemas.ts").read_text("utf-8")


@pytest.mark.slow
def test_it_works_with_a_server_through_faults(
    package: Path, server: ServerThread, proxy: FaultyProxy, faults: str
) -> None:
    variables = {
        "DIFFUSERVE_SERVER": server.address,
        "DIFFUSERVE_PROXY": proxy.url,
        "DIFFUSERVE_FAULTS": faults,
    }
    done = subprocess.run(
        ["npm", "test"], cwd=package, env=os.environ | variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_it_packs_what_a_program_imports(package: Path) -> None:
    command = ["npm", "pack", "--dry-run", "--json", "--silent"]
    packed = subprocess.run(command, cwd=package, capture_output=True, text=True, check=True).stdout
    files = {file["path"] for file in json.loads(packed[packed.index("[") :])[0]["files"]}
    assert {"LICENSE", "README.md", "package.json", "dist/index.js", "dist/index.d.ts"} <= files
    assert not any(name.startswith(("src/", "test/", "node_modules/")) for name in files)

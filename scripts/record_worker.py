"""Record what workers of the earlier version ask a control plane of that version, and its answers.

Today's control plane is tested with them: tests/integration/api/test_earlier_workers.py.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx

from support.earlier_version import environment_of, null_engine, unpack_earlier
from support.ports import free_port
from support.waiting import HANG_SECONDS, block_until

_OUTPUT = Path(__file__).parents[1] / "tests" / "integration" / "api" / "recorded" / "earlier_worker.json"
_ENDED = ("succeeded", "failed")


class Recorder(BaseHTTPRequestHandler):
    """Passes requests on to the control plane, and keeps them with their answers."""

    protocol_version = "HTTP/1.1"
    address = ""
    exchanges: ClassVar[list[dict[str, Any]]] = []

    def handle_request(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        names = ("content-type", "lease-token")
        headers = {name: self.headers[name] for name in names if name in self.headers}
        asked = {"method": self.command, "path": self.path, "headers": headers, "content": content.decode()}
        try:
            with httpx.Client(base_url=self.address, timeout=HANG_SECONDS, trust_env=False) as http:
                answer = http.request(self.command, self.path, content=content, headers=headers)
        except httpx.TransportError:  # the control plane was stopped during a long poll
            self.close_connection = True
            return
        kept = answer.json() if answer.content[:1] == b"{" else None
        self.exchanges.append({**asked, "status": answer.status_code, "answer": kept})
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = do_DELETE = handle_request

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Cluster:
    """A control plane of the earlier version behind a recorder, and a worker at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = environment_of(unpack_earlier(folder)) | {
            "DIFFUSERVE_DATA_DIR": str(folder / "data"),
            "DIFFUSERVE_CACHE_DIR": str(folder / "cache"),
            "DIFFUSERVE_PROMPT_FILTER": "none",
        }
        port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS, trust_env=False)
        self.plane = self._start("api", "--port", str(port))
        block_until(lambda: self._answers("/healthz"))
        Recorder.address = str(self.http.base_url)
        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()

    def worker(self, seconds: float, role: str = "all") -> "subprocess.Popen[bytes]":
        server = f"http://127.0.0.1:{self.proxy.server_port}"
        engine = null_engine(self._folder / "ledger", seconds)
        options = ("--model", "null", "--name", role, "--role", role, "--drain-seconds", "0.2")
        return self._start("worker", "--server", server, *options, "--engine-command", engine)

    def submit(self, prompt: str) -> str:
        """Submit a job, once its model has a worker."""
        body = {"input": {"prompt": prompt}, "model": "null"}
        block_until(lambda: self._answers("/readyz"))
        return str(self.http.post("/v1/jobs", json=body).raise_for_status().json()["id"])

    def wait(self, job_id: str, *statuses: str) -> None:
        block_until(lambda: self.http.get(f"/v1/jobs/{job_id}").json()["status"] in statuses)

    def _answers(self, path: str) -> bool:
        try:
            return self.http.get(path).is_success
        except httpx.TransportError:
            return False

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-m", "diffuserve", *arguments], env=self._environment)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            _run_all(cluster)
        finally:
            cluster.plane.kill()
            cluster.plane.wait()
            cluster.proxy.shutdown()
    kept = [exchange for exchange in Recorder.exchanges if _is_worth_keeping(exchange)]
    _OUTPUT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"{len(kept)} requests in {_OUTPUT}")


def _run_all(cluster: Cluster) -> None:
    """Have jobs completed, failed, handed over and released."""
    workers = [cluster.worker(seconds=1.2)]
    for prompt in ("a star", "bad"):
        cluster.wait(cluster.submit(prompt), *_ENDED)
    _stop(workers)
    workers = [cluster.worker(seconds=0.1, role=role) for role in ("denoise", "decode")]
    cluster.wait(cluster.submit("a moon"), *_ENDED)
    _stop(workers)
    workers = [cluster.worker(seconds=3_600.0)]
    cluster.wait(cluster.submit("a sun"), "running")
    _stop(workers)


def _stop(workers: list["subprocess.Popen[bytes]"]) -> None:
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        worker.wait(HANG_SECONDS)


def _is_worth_keeping(exchange: dict[str, Any]) -> bool:
    """Return false for claims in vain and for requests that were refused: of workers that have left."""
    return bool(exchange["status"] < httpx.codes.BAD_REQUEST and exchange["answer"] != {"leases": []})


if __name__ == "__main__":
    main()

"""A real Triton Inference Server, from the wheel of nvidia-pytriton, and requests by its own client."""

import json
import os
import shutil
import subprocess
import sysconfig
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from diffuserve.engine_process.agent_link import die_with_parent
from support.environments import environment
from support.ports import free_port
from support.waiting import block_until

# The server's stub for Python reads texts with numpy below 2 alone.
_REQUIREMENTS = ("nvidia-pytriton==0.7.0", "tritonclient[grpc,http]==2.61.0", "numpy==1.26.4")
_PROGRAM = Path(__file__).with_name("triton_program.py")


class TritonServer:
    """A server of one model repository on loopback, with its files and its log in `folder`.

    Skip the test where its environment cannot be made.
    """

    def __init__(self, repository: Path, folder: Path, *options: str) -> None:
        self._environment = environment("triton", _REQUIREMENTS)
        self._repository, self._folder, self._options = repository, folder, options
        self.http, self.grpc, self._metrics = free_port(), free_port(), free_port()

    def __enter__(self) -> "TritonServer":
        [packages] = self._environment.glob("lib/python*/site-packages")
        root = packages / "pytriton" / "tritonserver"
        backends = self._backends(root)
        ports = {"http-port": self.http, "grpc-port": self.grpc, "metrics-port": self._metrics}
        addresses = {f"{name}-address": "127.0.0.1" for name in ("http", "grpc", "metrics")}
        folders = {"model-repository": self._repository, "backend-directory": backends}
        said = {**folders, "cache-directory": root / "caches", **ports, **addresses}
        libraries = (sysconfig.get_config_var("LIBDIR"), packages / "nvidia_pytriton.libs")
        python = {  # its stub takes the first python3 of PATH, and that program's packages
            "PATH": f"{self._environment / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(packages),
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        }
        arguments = [*(f"--{name}={value}" for name, value in said.items()), *self._options]
        with (self._folder / "triton.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(root / "bin" / "tritonserver"), *arguments],
                env={**os.environ, **python},
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        block_until(lambda: self._process.poll() is not None or self.is_ready() or "FAILED" in self.log())
        return self

    def _backends(self, root: Path) -> Path:
        """Return a folder of backends with the stub of this version of Python."""
        backends = self._folder / "backends"
        shutil.copytree(root / "backends", backends)
        version = sysconfig.get_python_version()
        shutil.copy(
            root / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python"
        )
        return backends

    def is_ready(self) -> bool:
        """Return whether the server says that its model is ready."""
        try:
            self._get(self.http, "/v2/health/ready")
        except OSError:
            return False
        return True

    @property
    def python(self) -> Path:
        """The Python that has Triton's client."""
        return self._environment / "bin" / "python"

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send requests at once by Triton's client, as `triton_program` says, and return what each got."""
        done = subprocess.run(
            [str(self.python), str(_PROGRAM), str(self.http), str(self.grpc)],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    def metric(self, name: str) -> float:
        """Return the value of one of Triton's metrics."""
        lines = self._get(self._metrics, "/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def log(self) -> str:
        return (self._folder / "triton.log").read_text("utf-8", errors="replace")

    @staticmethod
    def _get(port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        finally:
            self._process.kill()

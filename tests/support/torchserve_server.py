"""A real TorchServe, whose frontend needs Java, in an environment of its own."""

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pytest

from support.environments import environment
from support.ports import free_port
from support.waiting import HANG_SECONDS, block_until

_REQUIREMENTS = ("torchserve==0.12.0",)
_MODEL = "diffuserve"


class TorchServe:
    """A server of the archive `diffuserve.mar` in a model store, with its log in `folder`, on loopback.

    Skip the test where its environment cannot be made or there is no Java.
    """

    def __init__(self, model_store: Path, folder: Path) -> None:
        if shutil.which("java") is None:
            pytest.skip("apt-get install openjdk-17-jre-headless: TorchServe's frontend needs Java")
        self._environment = environment("torchserve", _REQUIREMENTS)
        self._store, self._folder = model_store, folder
        self.url, *others = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
        names = ("inference", "management", "metrics")
        addresses = zip(names, (self.url, *others), strict=True)
        lines = (
            *(f"{name}_address={url}" for name, url in addresses),
            *(f"grpc_{name}_port={free_port()}" for name in names[:2]),
            "disable_token_authorization=true",
            "disable_system_metrics=true",
        )
        (folder / "config.properties").write_text("\n".join(lines))

    def __enter__(self) -> "TorchServe":
        models = ("--model-store", str(self._store), "--models", f"{_MODEL}={_MODEL}.mar")
        with (self._folder / "torchserve.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._environment / "bin" / "torchserve"), "--start", "--ncs", "--foreground"),
                    *("--ts-config", "config.properties", "--disable-token-auth", *models),
                ],
                cwd=self._folder,
                env={
                    **os.environ,
                    "LOG_LOCATION": "logs",
                    "PATH": f"{self._environment / 'bin'}:{os.environ['PATH']}",
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        block_until(lambda: self._process.poll() is not None or self.is_ready())
        return self

    def is_ready(self) -> bool:
        """Return whether a worker has loaded the model."""
        with suppress(OSError):
            return self.ask({"prompt": "a red circle", "width": 64, "height": 64, "steps": 1})[0] == 200
        return False

    def ask(self, body: object) -> tuple[int, Any]:
        """Send a JSON body, or bytes as they are, and return the status and the answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/predictions/{_MODEL}", content, headers)
        try:
            with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ask_at_once(self, bodies: Sequence[Mapping[str, Any]]) -> list[tuple[int, Any]]:
        """Send several bodies at once."""
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(self.ask, bodies))

    def log(self) -> str:
        return (self._folder / "torchserve.log").read_text("utf-8", errors="replace")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the launcher, Java and its workers, each by its id: its own `--stop` leaves some behind."""
        with suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(self._process.pid)
            started = [launcher, *launcher.children(recursive=True)]
            for process in started:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            _, alive = psutil.wait_procs(started, timeout=20)
            for process in alive:
                process.kill()
        self._process.wait(timeout=20)

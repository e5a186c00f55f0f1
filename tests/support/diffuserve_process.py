"""A server as a process of its own, for tests of documents."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.waiting import HANG_SECONDS, block_until


@contextmanager
def serving(
    *arguments: str, environment: Mapping[str, str], log: Path, program: Path | None = None
) -> Iterator[str]:
    """Yield the address of `diffuserve serve` once its worker is ready; stop it at the end."""
    command = [str(program)] if program else [sys.executable, "-m", "diffuserve"]
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), log.read_text(encoding="utf-8")
        block_until(lambda: is_ready(address))
        yield address
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0, log.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def is_ready(address: str) -> bool:
    """Return whether a server has a worker that takes jobs."""
    return httpx.get(f"{address}/readyz", timeout=HANG_SECONDS, trust_env=False).is_success

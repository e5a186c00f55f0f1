"""Debian's Prometheus and Alertmanager, where they are installed."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.waiting import HANG_SECONDS, block_until

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"


def skip_without(*programs: str) -> None:
    """Skip where a program of Prometheus or Alertmanager is missing."""
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not found: apt-get install prometheus prometheus-alertmanager")


def alerts() -> dict[str, dict[str, Any]]:
    """Return the rules of all alerts by name, in their order."""
    loaded = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
    return {rule["alert"]: rule for group in loaded["groups"] for rule in group["rules"]}


@contextmanager
def running(*command: str, url: str, log: Path) -> Iterator[None]:
    """Run a server of Prometheus' family until the block ends; it begins when the server is ready."""
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors)
    try:
        block_until(lambda: process.poll() is not None or _is_ready(url))
        assert process.poll() is None, log.read_text(encoding="utf-8")
        yield
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


@contextmanager
def prometheus(config: dict[str, Any], port: int, folder: Path) -> Iterator[str]:
    """Yield the address of a Prometheus with this configuration."""
    folder.mkdir()
    path, url = folder / "prometheus.yml", f"http://127.0.0.1:{port}"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    options = (
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.console.libraries=",
        "--web.console.templates=",
        "--rules.alert.resend-delay=1s",
    )
    with running("prometheus", *options, url=url, log=folder / "log"):
        yield url


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """Return the series that Prometheus answers an expression with."""
    response = httpx.get(f"{url}/api/v1/query", params={"query": expression}, trust_env=False)
    body = response.json()
    assert body["status"] == "success", (expression, body)
    result: list[dict[str, Any]] = body["data"]["result"]
    return result


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False

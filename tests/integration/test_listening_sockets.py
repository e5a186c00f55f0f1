"""Every process listens where SECURITY.md says, and nowhere else."""

import base64
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import httpx
import psutil
import pytest

from diffuserve.agent.engines.zygote import Zygote
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from support.image_files import png
from support.ports import free_port
from support.stored_models import manifest_of, write_files
from support.text_classifiers import write_text_checkpoint
from support.waiting import HANG_SECONDS

_DOCUMENT = Path(__file__).parents[2] / "SECURITY.md"
_MODEL = ("--model", "tiny-flux", "--device", "cpu", "--image-filter", "none")
_WORKER = ("worker", "--server", "http://127.0.0.1:1", *_MODEL)
_READY = "token_budget"  # of the line in which a worker describes an engine that is ready


@dataclass(frozen=True)
class Opened:
    """A row of the table: a process that listens if it is started `with_` an option."""

    process: str
    with_: str
    places: str

    def address(self, options: Mapping[str, str]) -> str | None:
        """Return where it may listen with these options; `None` if it may not."""
        if self.with_ not in ("always", *options):
            return None
        named = [name for name in re.findall(r"`([^`]+)`", self.places) if name in options]
        if named:
            return options[named[0]].rpartition(":")[0] or options[named[0]]
        return next(iter(re.findall(r"`([0-9.]+)`", self.places)), None)


def opened() -> list[Opened]:
    """The rows of the table in the document."""
    section = _DOCUMENT.read_text().partition("## Ports that are opened")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [Opened(who.partition(" (")[0], option.strip("`"), places) for who, option, places, _ in rows[1:]]


_TABLE = opened()
_PARTS = {
    "launcher of ranks": ("diffuserve.engine_process.ranks.launcher",),  # whose words hold those of its ranks
    "server": ("diffuserve api", "diffuserve serve"),
    "moderation": ("diffuserve moderate",),
    "agent": ("diffuserve worker",),
    "engine": ("diffuserve.engine_process.start.main", "diffuserve.testing.null_engine"),
}


def part_of(process: psutil.Process) -> str:
    """The process's name in the table."""
    if "RANK_STORE" in process.environ():
        return "rank"
    words = " ".join(process.cmdline())
    return next((part for part, marks in _PARTS.items() if any(mark in words for mark in marks)), "another")


def started_by(command: str) -> Sequence[str]:
    """The processes of a command."""
    return {"api": ["server"], "moderate": ["moderation"]}.get(
        command, ["agent", "engine", "rank", "launcher of ranks"]
    )


def listening(root: int) -> set[tuple[str, str]]:
    """The process's name and the address of each listening socket of a process and those below it."""
    found = set()
    for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
        try:
            sockets = [each for each in process.net_connections() if each.status == psutil.CONN_LISTEN]
            found |= {(part_of(process), each.laddr.ip) for each in sockets}
        except psutil.Error:
            continue  # it has ended
    return found


def allowed(options: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return what the table allows with these options."""
    return {(row.process, address) for row in _TABLE if (address := row.address(options)) is not None}


@contextmanager
def running(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            (sys.executable, "-m", "diffuserve", *command),
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


Found: TypeAlias = set[tuple[str, str]]


def heard(process: subprocess.Popen[bytes], is_up: Callable[[Found], bool]) -> Found:
    """All listening sockets from the start of a command until it is up."""
    found: Found = set()
    deadline = time.monotonic() + HANG_SECONDS
    while not is_up(found):
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, found
        found |= listening(process.pid)
        time.sleep(0.1)
    return found | listening(process.pid)


def check(command: Sequence[str], tmp_path: Path, up: str = "") -> None:
    """Start a command, and compare where its processes listen with the table.

    It is up when its log has the word `up`, or without one as soon as all listen.
    """
    log = tmp_path / "log"
    options = {word: value for word, value in pairwise(command) if word.startswith("--")}
    expected = {each for each in allowed(options) if each[0] in started_by(command[0])}
    with running(*command, log=log) as process:
        found = heard(process, lambda found: up in log.read_text() if up else found >= expected)
    assert found == expected, log.read_text()


@pytest.mark.parametrize("more", [(), ("--host", "127.0.0.2")], ids=["loopback", "host"])
def test_a_control_plane_listens_at_its_address(more: tuple[str, ...], tmp_path: Path) -> None:
    check(("api", "--port", "0", "--data-dir", str(tmp_path / "data"), *more), tmp_path, "http://")


def test_a_server_with_its_worker_listens_once(tmp_path: Path) -> None:
    """A long prompt is judged and an image read meanwhile, each in a process of its own."""
    engine = shlex.join((sys.executable, "-m", "diffuserve.testing.null_engine"))
    command = ("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--engine-command", engine)
    with running(*command, log=(log := tmp_path / "log")) as process:
        found = heard(process, lambda _found: "http://" in log.read_text())
        address = re.findall(r"http://\S+", log.read_text())[0]
        image = {"image": "data:image/png;base64," + base64.b64encode(png(64, 64)).decode()}
        long = {"prompt": "a small house by the lake, " * 60}
        for values in (long, image | {"prompt": "a star"}):
            httpx.post(f"{address}/v1/jobs", json={"input": values}, trust_env=False, timeout=HANG_SECONDS)
        found |= listening(process.pid)
    assert found == {("server", "127.0.0.1")}


def test_a_moderation_server_listens_at_its_address(tmp_path: Path) -> None:
    folder = write_text_checkpoint(tmp_path / "checkpoint", ("OK", "violence"))
    check(("moderate", str(folder), "--harmless", "OK", "--port", "0"), tmp_path, "http://")


def test_a_worker_listens_for_its_metrics_alone(tmp_path: Path) -> None:
    check((*_WORKER, "--role", "decode", "--metrics-port", str(free_port())), tmp_path, _READY)


def test_a_worker_with_peers_listens_at_its_private_address(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", {"model_index.json": 100, "vae/a.safetensors": 100})
    push(open_models((tmp_path / "store").as_uri()), files, manifest := manifest_of(files))
    stored = ModelStoreConfig(model_store=(tmp_path / "store").as_uri(), model_cache=tmp_path / "cache")
    config = EngineProcessConfig(model=manifest.reference, stored=stored, peers="127.0.0.1")
    engine = (sys.executable, "-m", "diffuserve.testing.null_engine", "--fetch", config.to_json())
    command = (*_WORKER, "--peers", "127.0.0.1", "--engine-command", shlex.join(engine))
    check(command, tmp_path)


def test_ranks_of_one_machine_listen_on_loopback(tmp_path: Path) -> None:
    check((*_WORKER, "--gpus", "2"), tmp_path, _READY)


@pytest.mark.slow
def test_ranks_of_several_machines_listen_at_the_endpoint(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("s" * 64)
    secret.chmod(0o600)
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = ("--nnodes", "2", "--node-endpoint", endpoint, "--node-secret-file", str(secret))
    with running(*_WORKER, *nodes, "--node-rank", "1", "--drain-seconds", "0", log=tmp_path / "second"):
        check((*_WORKER, *nodes, "--node-rank", "0"), tmp_path, _READY)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a zygote")
async def test_a_zygote_and_what_it_forks_listen_nowhere() -> None:
    images = ImageOptions(image_filter="none", file_metadata=False)
    zygote = await Zygote.start(EngineProcessConfig(model="tiny-flux", images=images))
    try:
        assert listening(zygote.pid) == set()
    finally:
        await zygote.close()


def test_the_table_is_read() -> None:
    """Each row is allowed in one of the tests above, which also find what it names."""
    options = {"--metrics-port": "1", "--peers": "10.0.0.1:6881", "--gpus": "2"}
    assert allowed({}) == {("server", "127.0.0.1"), ("moderation", "127.0.0.1")}
    more = {("agent", "127.0.0.1"), ("engine", "10.0.0.1"), ("rank", "127.0.0.1")}
    assert allowed(options) == allowed({}) | more
    assert len(_TABLE) == 7

"""The launcher of ranks: what it tells them, when it ends them, and where it listens."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.engine_process.ranks.launcher import group_of, parse_options
from diffuserve.parallel.rank_place import RankPlace
from diffuserve.parallel.rank_store import open_rank_store
from diffuserve.protocol.nodes import read_node_secret
from support.ports import free_port
from support.waiting import HANG_SECONDS, block_until

_TELL = """
import json, os, time
from diffuserve.parallel.rank_place import own_place
from diffuserve.parallel.seal import SealedConnection
place = own_place()
def connected():
    while True:
        try:
            return place.connect()
        except ConnectionRefusedError:  # the first machine may start later
            time.sleep(0.05)
store = SealedConnection(connected(), place.secret)
def ask(*words):
    store.send(json.dumps(words).encode())
    return json.loads(store.receive())
def meet(name):
    ask("add", name, 1)
    while place.rank < 2 and ask("get", name) != str(place.size):  # the store ends with the first machine
        time.sleep(0.01)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
meet("here")
os.write(1, (json.dumps([os.environ[name] for name in names]) + "\\n").encode())
meet("told")
"""
Launched: TypeAlias = subprocess.Popen[str]
Launch = Callable[..., Launched]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Runs a program in two ranks."""
    with ExitStack() as stack:

        def launch(program: str, *options: str) -> Launched:
            words = (
                "-m",
                "diffuserve.engine_process.ranks.launcher",
                "--ranks=2",
                *options,
                "--",
                "-c",
                program,
            )
            launched = subprocess.Popen((sys.executable, *words), stdout=subprocess.PIPE, text=True)
            stack.enter_context(launched)
            stack.callback(launched.kill)
            return launched

        yield launch


def told(launched: Launched) -> list[list[str]]:
    out, _ = launched.communicate(timeout=HANG_SECONDS)
    assert launched.returncode == 0
    return sorted(json.loads(line) for line in out.splitlines())


def test_ranks_are_told_their_places_and_share_a_store_on_loopback(launch: Launch) -> None:
    loopback = next(
        name
        for name, found in psutil.net_if_addrs().items()
        if "127.0.0.1" in {each.address for each in found}
    )
    places = [[str(rank), "2", str(rank), "2", loopback, f"={loopback}"] for rank in range(2)]
    assert told(launch(_TELL)) == places


_SLEEP = "import os, time; os.write(1, b'%s %d\\n' % (os.environb[b'RANK'], os.getpid())); time.sleep(3600)"


def started(launched: Launched, num_ranks: int = 2) -> list[int]:
    """The processes of the ranks, by rank."""
    assert launched.stdout is not None
    lines = sorted(launched.stdout.readline() for _ in range(num_ranks))
    return [int(line.split()[1]) for line in lines]


def lives(pid: int) -> bool:
    """True unless it has ended; nobody may have asked for the exit code of an orphan."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("victim", [0, 1])
def test_all_end_with_the_first_that_is_killed(victim: int, launch: Launch) -> None:
    ranks = started(launched := launch(_SLEEP))
    os.kill(ranks[victim], signal.SIGKILL)
    assert launched.wait(HANG_SECONDS) == 128 + signal.SIGKILL
    assert not any(map(lives, ranks))


def test_the_exit_code_is_that_of_the_first_which_fails(launch: Launch) -> None:
    launched = launch("import os, time; os.environ['RANK'] == '1' and os._exit(70); time.sleep(3600)")
    assert launched.wait(HANG_SECONDS) == 70


def test_one_that_ends_well_leaves_the_others_their_time(launch: Launch) -> None:
    program = "import os, time; time.sleep(int(os.environ['RANK'])); os.write(1, os.environb[b'RANK'])"
    out, _ = (launched := launch(program)).communicate(timeout=HANG_SECONDS)
    assert (launched.returncode, out) == (0, "01")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_stop_signals_end_neither_the_launcher_nor_a_rank(number: signal.Signals, launch: Launch) -> None:
    ranks = started(launched := launch(_SLEEP))
    for pid in (launched.pid, *ranks):
        os.kill(pid, number)
    assert all(map(psutil.pid_exists, (launched.pid, *ranks)))
    os.kill(ranks[0], signal.SIGKILL)
    assert launched.wait(HANG_SECONDS) == 128 + signal.SIGKILL, "it had not ended before"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's end")
def test_ranks_end_with_a_launcher_that_is_killed(launch: Launch) -> None:
    ranks = started(launched := launch(_SLEEP))
    launched.kill()
    launched.wait(HANG_SECONDS)
    block_until(lambda: not any(map(lives, ranks)))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (path := tmp_path / "secret").write_text("s" * 64 + "\n")
    path.chmod(0o640)
    return path


def node(rank: int, host: str, port: int, secret: Path) -> tuple[str, ...]:
    return "--nodes=2", f"--node-rank={rank}", f"--host={host}", f"--port={port}", f"--secret-file={secret}"


def test_ranks_of_two_machines_share_the_store_of_the_first(secret: Path, launch: Launch) -> None:
    port = free_port()
    second, first = (launch(_TELL, *node(rank, "127.0.0.1", port, secret)) for rank in (1, 0))
    places = [(str(rank), "4", str(rank % 2)) for rank in range(4)]
    assert [(rank, size, here) for rank, size, here, *_ in (*told(first), *told(second))] == places


def test_the_store_of_several_machines_listens_at_its_address_alone(secret: Path) -> None:
    options = parse_options(("--ranks=1", *node(0, "127.0.0.1", free_port(), secret)))
    group = group_of(options)
    assert group.listener is not None
    with group.listener as listener:
        assert listener.getsockname() == ("127.0.0.1", options.port)
    assert group.secret == b"s" * 64


@pytest.mark.parametrize(
    ("host", "reason"), [("8.8.8.8", "give an address of a private"), ("10.255.255.1", "listen")]
)
def test_an_endpoint_that_is_not_private_or_not_here_is_refused(host: str, reason: str, secret: Path) -> None:
    with pytest.raises(InvalidParams, match=f"node_endpoint.*{reason}"):
        group_of(parse_options(("--ranks=1", *node(0, host, 29_500, secret))))


def test_a_machine_without_the_secret_is_told_so(secret: Path, tmp_path: Path, launch: Launch) -> None:
    (other := tmp_path / "other").write_text("t" * 64)
    other.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    first = launch(_SLEEP, *node(0, "127.0.0.1", port, secret))
    ranks = started(first)
    place = RankPlace(2, 4, 0, 2, f"127.0.0.1:{port}", read_node_secret(other))
    with pytest.raises(RuntimeError, match="has another secret"):
        open_rank_store(place)
    os.kill(ranks[0], signal.SIGKILL)
    first.wait(HANG_SECONDS)

"""What else ran on a machine: of all that its cores did, what was not ours."""

import os
import socket
import subprocess
import sys

import pytest

from diffuserve.bench.machine_load import CpuReading, MachineLoad, listeners, read_cpu
from diffuserve.bench.targets import Address

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('burned', flush=True)\ninput()"


def load(machine_seconds: float, own_seconds: float) -> MachineLoad:
    before = CpuReading(at=100.0, machine_seconds=5000.0, own_seconds=7.0, load=0.1)
    after = CpuReading(110.0, 5000.0 + machine_seconds, 7.0 + own_seconds, load=1.9)
    return MachineLoad.between(before, after, num_cores=2)


@pytest.mark.parametrize(
    ("machine", "own", "cores", "is_busy"),
    [(20.0, 19.0, 0.1, False), (20.0, 10.0, 1.0, True), (2.5, 0.0, 0.25, True), (5.0, 5.1, 0.0, False)],
)
def test_what_we_did_not_do_was_other_work(machine: float, own: float, cores: float, is_busy: bool) -> None:
    found = load(machine, own)
    assert found.other_cores == pytest.approx(cores)
    assert found.is_busy == is_busy
    assert (found.load_before, found.load_after) == (0.1, 1.9)
    assert (found.warning is not None) == is_busy


def test_a_child_is_ours_while_it_runs_and_when_it_has_ended() -> None:
    before = read_cpu()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout
        child.stdout.readline()
        running = read_cpu()
        child.communicate("\n")
    ended = read_cpu()
    for after in (running, ended):  # the kernel counts in hundredths
        assert after.own_seconds - before.own_seconds >= 0.2
        assert after.machine_seconds - before.machine_seconds >= 0.2


def test_a_server_of_this_machine_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners(port) == [os.getpid()]
        assert Address.parse(f"http://localhost:{port}").local_processes() == [os.getpid()]
        assert Address.parse(f"http://10.0.0.5:{port}").local_processes() == []
    assert listeners(port) == []

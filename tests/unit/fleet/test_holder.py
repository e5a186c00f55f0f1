"""One process keeps a fleet, and can be found and ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.fleet import holder

HOLD = """
import signal, sys
from pathlib import Path
from diffuserve.fleet.holder import held
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with held(Path(sys.argv[1])):
    print("held", flush=True)
    signal.sigwait([signal.SIGTERM])
"""


def test_a_second_one_is_refused_and_the_first_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "fleets" / "ray-tiny"
    holder.stop(file, 60.0)  # nobody holds it yet
    words = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(InvalidParams, match=f"{first.pid}"), holder.held(file):
            pass
        holder.stop(file, 60.0)
        assert first.wait() == 0
    with holder.held(file):
        pass


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "fleets" / "ray-tiny"
    deaf = HOLD.replace("signal.sigwait([signal.SIGTERM])", "signal.pause()")
    with subprocess.Popen([sys.executable, "-c", deaf, str(file)], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "held\n"
        holder.stop(file, 0.3)
        assert one.wait() == -signal.SIGKILL


def test_one_on_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleets" / "slurm-tiny"
    with holder.held(file):
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        with pytest.raises(InvalidParams, match="stop it there"):
            holder.stop(file, 60.0)

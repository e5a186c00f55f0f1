"""The benchmark of cluster managers plays a short trace on each real one, and leaves nothing behind."""

import re
from contextlib import suppress
from uuid import uuid4

import psutil
import pytest

from support.benchmark_runs import run_benchmark

MARK = "FLEET_ENGINES_OF_TEST"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Slurm", "Ray"])
def test_a_short_trace_loses_no_job_and_no_process_is_left(name: str) -> None:
    mark = str(uuid4())
    done = run_benchmark("fleet-engines", "--quick", "--only", name.lower(), **{MARK: mark})
    if missing := re.search("left out: (.*)", done.stdout):
        pytest.skip(missing[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^\| {name} \| \d+ \| \*\*0\*\* \|", done.stdout, re.MULTILINE)
    assert not [process for process in psutil.process_iter() if mark_of(process) == mark]


def mark_of(process: psutil.Process) -> str | None:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.environ().get(MARK)
    return None

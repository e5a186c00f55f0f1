"""The benchmark of our server beside others plays two of them; no figure is looked at."""

import re

import pytest

from benchmarks.serve.serve_peers import OURS, RATES
from support.benchmark_runs import run_benchmark


@pytest.mark.slow
def test_every_request_is_drawn_at_every_rate() -> None:
    peer = "LitServe, batches of 8, our engine"
    done = run_benchmark("serve-peers", "--quick", "--capacity", "4", "--only", peer, "--only", OURS)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (.+?) \| \*\*[\d.]+\*\* \| .*? \| \d+ ms \| (.*?) \|$", done.stdout, re.MULTILINE)
    assert rows == [(peer, ""), (OURS, "")] * len(RATES)

"""Our server in the replicas of a real Ray Serve, whose number follows the accepted work."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.environments import ROOT, environment

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "tests" / "support" / "ray_serve_program.py"


def test_replicas_serve_grow_shrink_and_leave_nothing_behind(tmp_path: Path) -> None:
    python = environment("ray-serve", ["ray[serve]==2.60.0"]) / "bin" / "python"
    own = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [python, PROGRAM],
        env=os.environ | own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("one") == 1
    status, drawn = told.pop("drawn")
    assert status == 200
    assert drawn["data"][0]["b64_json"]
    status, refused = told.pop("refused")
    assert status == 400
    assert refused["error"]["param"] == "size"
    assert told == {
        "grew": True,
        "shrank": True,
        "engine_ended_with_its_replica": True,
        "another_replica": True,
        "drawn_again": 200,
        "engines_left": False,
    }

"""Fleets on real clusters of Ray, each of several nodes on loopback; engines generate nothing."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.environments import ROOT, environment
from support.fleet_plane import OWN, ControlPlane, control_plane

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with control_plane(tmp_path) as plane:
        yield plane


def told_by(program: str, plane: ControlPlane, folder: Path) -> dict[str, Any]:
    """Run a program of `tests/support` where Ray is, and return the JSON that it prints at last."""
    python = environment("ray-serve", ["ray[serve]==2.60.0"]) / "bin" / "python"
    own = {
        "PYTHONPATH": str(ROOT / "src"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_period_ms": "1000",
        "XDG_STATE_HOME": str(folder / "state"),
        **OWN,
    }
    done = subprocess.run(
        [python, ROOT / "tests" / "support" / program, plane.url, folder],
        env=os.environ | own,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_lost_node_loses_no_job_and_an_ended_fleet_leaves_nothing(
    tmp_path: Path, plane: ControlPlane
) -> None:
    told = told_by("ray_fleet_program.py", plane, tmp_path)
    assert "0 GPUs" in told.pop("no_room")
    assert "no-such-model" in told.pop("no_model")
    assert told == {
        "ready": True,
        "placements": ["placed", "placed"],
        "replaced": True,
        "ended": True,
        "statuses": ["succeeded"],
        "found_again": True,
        "same_workers": True,
        "code": 0,
        "workers_left": [],
        "engines_left": False,
        "gpus_free": True,
    }

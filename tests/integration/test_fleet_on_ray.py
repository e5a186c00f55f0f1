"""Fleets on real clusters of Ray, each of several nodes on loopback; engines generate nothing."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.environments import ROOT, environment
from support.fleet_plane import OWN, ControlPlane, control_plane

pytestmark = pytest.mark.slow


def told_by(program: str, plane: ControlPlane, folder: Path, **environment_of_ray: str) -> dict[str, Any]:
    """Run a program of `tests/support` where Ray is, and return the JSON that it prints at last."""
    python = environment("ray-serve", ["ray[serve]==2.60.0"]) / "bin" / "python"
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests"))),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_period_ms": "1000",
        "XDG_STATE_HOME": str(folder / "state"),
        **OWN,
        **environment_of_ray,
    }
    done = subprocess.run(
        [python, ROOT / "tests" / "support" / program, plane.url, folder],
        env=os.environ | own,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_lost_node_loses_no_job_and_an_ended_fleet_leaves_nothing(tmp_path: Path) -> None:
    with control_plane(tmp_path) as plane:
        told = told_by("ray_fleet_program.py", plane, tmp_path)
    assert "0 GPUs" in told.pop("no_room")
    assert "no-such-model" in told.pop("no_model")
    assert "ray start --head" in told.pop("no_ray")
    assert "the cluster's own versions" in told.pop("other_ray")
    for other in ("other_diffuserve", "other_worker"):
        assert "install the same on both" in told.pop(other)
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


def test_the_cluster_s_own_autoscaler_brings_the_nodes_that_workers_wait_for_and_takes_them_away(
    tmp_path: Path,
) -> None:
    # The predicted work of the null engine is little.
    with control_plane(tmp_path, DIFFUSERVE_SCALE_TARGET_SECONDS="0.01") as plane:
        told = told_by("ray_autoscaler_program.py", plane, tmp_path)
    assert told == {
        "nodes_before": 0,
        "one": True,
        "most": True,
        "succeeded": True,
        "one_again": True,
        "code": 0,
        "none": True,
        "one_for_a_job": True,
        "job": True,
        "none_again": True,
        "engines_left": 0,
    }


def test_a_worker_of_two_nodes_draws_and_goes_on_when_one_of_them_is_lost(tmp_path: Path) -> None:
    with control_plane(tmp_path) as plane:
        keep_loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "GLOO_SOCKET_IFNAME": "lo"}
        told = told_by("ray_spread_program.py", plane, tmp_path, **keep_loopback)
    assert told == {
        "ready": True,
        "drawn": True,
        "nodes": 2,
        "drawn_elsewhere": True,
        "code": 0,
        "workers_left": [],
        "ranks_left": False,
    }

"""Jobs of Slurm that are workers: their script, and what `squeue` tells of them."""

import socket
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.fleet.launcher import FleetPlacement, FleetWorker, WorkerSetup
from diffuserve.fleet.slurm import (
    SlurmLauncher,
    batch_script,
    check_address,
    check_options,
    fleet_workers,
)

NOW = datetime.fromisoformat("2026-11-27T12:00:00")
SETUP = WorkerSetup(
    fleet="tiny", arguments=("--model", "a model", "--label", "x=$(id)"), gpus=1.0, drain_seconds=20.0
)
PRINTED = ["worker", "--model", "a model", "--label", "x=$(id)", "--server", "http://n7:8000", "--name"]


def printed_by(script: str) -> list[str]:
    names = {"SLURM_JOB_NAME": "diffuserve-tiny", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    environment = {"PATH": "/usr/bin:/bin", **names}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_script_is_the_worker_and_no_word_is_read_by_the_shell(tmp_path: Path) -> None:
    file = tmp_path / "it's here"
    file.write_text("http://n7:8000\n", encoding="utf-8")
    for server in ("http://n7:8000", file):
        script = batch_script(SETUP, ["printf", "%s\\n"], server)
        assert printed_by(script) == [*PRINTED, "diffuserve-tiny-7-2"]


def test_states_of_jobs_are_placements() -> None:
    listed = """
5_1|RUNNING|0|NONE|None|n1|/logs/%A_%a.log|
5_2|COMPLETING|0|NONE|None|n2|/logs/%A_%a.log|
5_3|PENDING|0|NONE|Resources||/logs/%A_%a.log|
4_1|FAILED|512|2026-11-27T11:59:30|NonZeroExitCode|n3|/logs/%A_%a.log|
4_2|FAILED|256|2026-11-27T11:59:30|NonZeroExitCode|n3|/logs/%A_%a.log|
4_3|OUT_OF_MEMORY|125|2026-11-27T11:59:30|OutOfMemory|n3|/logs/%A_%a.log|
4_4|FAILED|9|2026-11-27T11:59:30|RaisedSignal:9|n3|/logs/%A_%a.log|
3_1|FAILED|512|2026-11-27T11:58:30|NonZeroExitCode|n3|/logs/%A_%a.log|
"""
    placed, waiting, failed = FleetPlacement.PLACED, FleetPlacement.WAITING, FleetPlacement.FAILED
    ending = FleetPlacement.ENDING
    assert fleet_workers(listed, NOW) == [
        FleetWorker(name="5_1", placement=placed, detail="n1"),
        FleetWorker(name="5_2", placement=ending, detail="n2"),
        FleetWorker(name="5_3", placement=waiting, detail="Resources"),
        FleetWorker(
            name="4_1",
            placement=failed,
            detail="exit code 2 on n3; its own message is in /logs/4_1.log",
            cannot_start=True,
        ),
        FleetWorker(
            name="4_2", placement=failed, detail="exit code 1 on n3; its own message is in /logs/4_2.log"
        ),
        FleetWorker(
            name="4_3", placement=failed, detail="no memory left on n3; its own message is in /logs/4_3.log"
        ),
        FleetWorker(
            name="4_4", placement=failed, detail="signal 9 on n3; its own message is in /logs/4_4.log"
        ),
    ]


@pytest.mark.parametrize("option", ["--array=1-9", "-J", "--requeue", "--wrap=true"])
def test_options_that_the_fleet_gives_itself_are_refused(option: str) -> None:
    with pytest.raises(InvalidParams, match="leave it out"):
        check_options(["--partition=gpu", option])


@pytest.mark.parametrize("server", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"])
def test_a_control_plane_that_other_machines_do_not_reach_is_refused(server: str) -> None:
    check_address(server, ["localhost", socket.gethostname()])
    check_address("http://n7:8000", ["n1"])
    with pytest.raises(InvalidParams, match="another machine on n1; give an address"):
        check_address(server, ["localhost", "n2", "n1"])


def test_where_there_is_no_slurm_a_fleet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidParams, match="login node"):
        SlurmLauncher(SETUP, "", ())


@pytest.mark.parametrize(
    ("complaint", "told"),
    [
        (
            "sbatch: fatal: Could not establish a configuration source",
            "no node of a Slurm.*login node",
        ),
        ("sbatch: error: invalid partition specified: gpu", "invalid partition specified: gpu; correct the"),
    ],
)
def test_what_slurm_refuses_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, told: str
) -> None:
    for command in (
        "sbatch",
        "squeue",
        "scancel",
        "sinfo",
    ):  # stand-ins, which refuse everything
        (tmp_path / command).write_text(f"#!/bin/sh\nprintf 'error: first\n{complaint}\n' >&2\nexit 1\n")
        (tmp_path / command).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InvalidParams, match=told) as refused:
        SlurmLauncher(SETUP, "", ()).check(2, "http://n7:8000")
    assert ("error: first" in str(refused.value)) == ("partition" in complaint)

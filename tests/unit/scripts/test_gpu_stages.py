"""Stages for a GPU are played one after another, whatever becomes of each; shell commands stand for them."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.gpu.stages import runner as played
from benchmarks.gpu.stages.stages import Stage

FINDING = json.dumps({"what": "speed", "found": 1.5, "ok": True})


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the runner, with stages that are shell commands: their functions, with `FILE` to write to."""
    stages = {
        "sound": Stage(f"echo '{FINDING}' >FILE", 60, "it ends well"),
        "endless": Stage(f"echo '{FINDING}' >FILE; exec sleep 600", 2, "it must be stopped"),
        "crashing": Stage("kill -SEGV $$", 60, "it dies"),
    }

    def command(name: str, file: Path, how: object) -> list[str]:
        return ["sh", "-c", stages[name].function.replace("FILE", str(file))]

    monkeypatch.setattr(played, "STAGES", stages)
    monkeypatch.setattr(played, "_command", command)
    return played


def test_a_stage_that_must_be_stopped_or_dies_keeps_what_it_found_and_the_next_is_played(
    runner: ModuleType, tmp_path: Path
) -> None:
    names = ["endless", "crashing", "sound"]
    report = runner.play(names, runner.Play(tmp_path))
    told = {name: [finding["found"] for finding in found["findings"]] for name, found in report.items()}
    assert told == {
        "endless": [1.5, "stopped after 2 s"],
        "crashing": ["ended with code -11"],
        "sound": [1.5],
    }
    assert not runner.is_right(report, names)
    assert "| endless (2 s) | speed | 1.5 | right |" in runner.table(report)


def test_a_report_is_merged_with_the_earlier_one_and_copied(runner: ModuleType, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    runner.play(["crashing"], runner.Play(tmp_path))
    report = runner.play(["sound"], runner.Play(tmp_path, copy_to=away))
    assert list(report) == ["crashing", "sound"]
    assert json.loads((away / "gpu_day.json").read_text()) == report
    assert runner.is_right(report, ["sound"])


def test_what_no_time_is_left_for_is_stopped_at_once(runner: ModuleType, tmp_path: Path) -> None:
    report = runner.play(["endless"], runner.Play(tmp_path, within_seconds=0.0))
    assert report["endless"]["findings"][-1]["found"] == "stopped after 0 s"

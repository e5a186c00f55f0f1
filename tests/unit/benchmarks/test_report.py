"""Result files: what was measured beside other work is marked, and lies apart from what is committed."""

import json
from pathlib import Path

import pytest

from benchmarks.shared import report
from diffuserve.bench.machine_load import MachineLoad

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
CONDITIONS = {"date": "2026-11-27", "cpu": "some"}


class Meter:
    """A machine of two cores, of which others took so much."""

    def __init__(self, other_cores: float) -> None:
        self._load = MachineLoad(load_before=0.1, load_after=2.0, other_cores=other_cores, num_cores=2)

    def read(self) -> MachineLoad:
        return self._load


@pytest.fixture
def stem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "OUT", tmp_path / "out")
    monkeypatch.delenv(report.KEEP_BUSY, raising=False)
    return tmp_path / "results" / "engine_cpu"


def written(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(f"{path}.json").read_text())
    return found


def test_a_result_tells_what_ran_beside_it(
    stem: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "_METER", Meter(0.05))
    path = report.write_report(stem, {"figures": [1]}, "# Engine", CONDITIONS)
    told = {"load": "0.10 before, 2.00 after", "other work": "0.05 of 2 cores"}
    assert written(path) == {"conditions": CONDITIONS | told, "busy": False, "figures": [1]}
    assert path.parent == stem.parent
    assert "other work 0.05 of 2 cores." in Path(f"{path}.md").read_text()
    assert "BUSY" not in capsys.readouterr().err


def test_a_busy_machine_is_told_loudly_and_its_result_lies_elsewhere(
    stem: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "_METER", Meter(1.0))
    path = report.write_report(stem, {}, "# Engine", CONDITIONS)
    assert path.is_relative_to(stem.parents[1] / "out")
    assert written(path)["busy"] is True
    assert "BUSY: other processes took 1.00 of the 2 cores" in capsys.readouterr().err
    assert not stem.parent.exists()
    monkeypatch.setenv(report.KEEP_BUSY, "1")
    assert report.write_report(stem, {}, "# Engine", CONDITIONS).parent == stem.parent


def test_counts_hold_beside_other_work(stem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_METER", Meter(2.0))
    path = report.write_counted(stem, {"kernels": 3}, "# Kernels", CONDITIONS)
    assert path.parent == stem.parent
    assert written(path) == {"conditions": CONDITIONS, "kernels": 3}


def test_no_committed_result_is_of_a_busy_machine() -> None:
    results = {path.name: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    assert results
    assert [name for name, result in results.items() if result.get("busy", False)] == []

"""The scripts of `make check` find what they look for, and say so when they could not look."""

import json
import subprocess
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
CLEAN = {"name": "sound", "version": "1", "vulns": []}
VULNERABLE = {"name": "holed", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "ours", "skip_reason": "not found"}


def load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def audit() -> ModuleType:
    return load("audit_dependencies")


def answer(monkeypatch: pytest.MonkeyPatch, output: str | Exception) -> list[list[str]]:
    """Have every index answer with `output`; return the commands that ask."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        if isinstance(output, Exception):
            raise output
        return subprocess.CompletedProcess(command, 1, output, "")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


@pytest.mark.parametrize(
    "output",
    ["", "[]", json.dumps({"dependencies": [UNKNOWN]}), subprocess.TimeoutExpired("pip-audit", 1)],
    ids=["no answer", "another answer", "an index that knows nothing", "no answer in time"],
)
def test_an_audit_without_an_index_is_skipped_and_says_so(
    output: str | Exception,
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = answer(monkeypatch, output)
    assert audit.main([]) == 0
    assert "skipped: no vulnerability index reachable" in capsys.readouterr().err
    assert len(asked) == len(audit.SERVICES)
    assert audit.main(["--required"]) == 1


@pytest.mark.parametrize(
    ("report", "code", "said"),
    [
        ([CLEAN], 0, "1 dependencies have no known vulnerability"),
        ([CLEAN, UNKNOWN], 0, "not checked: ours"),
        ([CLEAN, VULNERABLE], 1, "holed 2: CVE-1, fixed in 3"),
    ],
)
def test_an_audit_reports_what_the_index_knows(
    report: list[dict[str, Any]],
    code: int,
    said: str,
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer(monkeypatch, json.dumps({"dependencies": report}))
    assert audit.main([]) == code
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(("text", "code"), [("nothing to see", 0), ("AKIA" + "IOSFODNN7EXAMPLQ", 1)])
def test_a_secret_in_a_tracked_file_is_found(
    text: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "notes.txt").write_text(f"{text}\n")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    scan = load("scan_secrets")
    baseline = json.loads((SCRIPTS.parent / scan.BASELINE).read_text("utf-8")) | {"results": {}}
    (tmp_path / scan.BASELINE).write_text(json.dumps(baseline))
    monkeypatch.setattr(scan, "ROOT", tmp_path)
    assert scan.main([]) == code


def test_a_known_lookalike_may_move_to_another_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    scan = load("scan_secrets")
    monkeypatch.setattr(scan, "ROOT", tmp_path)
    known = "AKIA" + "IOSFODNN7EXAMPLQ"
    (tmp_path / "notes.txt").write_text(f"{known}\n")
    baseline = json.loads((SCRIPTS.parent / scan.BASELINE).read_text("utf-8")) | {"results": {}}
    (tmp_path / scan.BASELINE).write_text(json.dumps(baseline))
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert scan.main(["--update"]) == 0
    (tmp_path / "notes.txt").write_text(f"a line\n{known}\n")
    before = (tmp_path / scan.BASELINE).read_text("utf-8")
    assert scan.main([]) == 0
    assert (tmp_path / scan.BASELINE).read_text("utf-8") == before


def test_vendored_modules_are_compared_byte_for_byte(tmp_path: Path) -> None:
    vendored = load("check_vendored")
    made, kept = tmp_path / "made", tmp_path / "kept"
    for folder in (made, kept):
        folder.mkdir()
        (folder / "same.js").write_bytes(b"1")
    (made / "changed.js").write_bytes(b"1")
    (kept / "changed.js").write_bytes(b"2")
    (kept / "extra.js").write_bytes(b"")
    assert vendored.compare(made, kept) == ["changed.js", "extra.js"]


def test_vendored_modules_without_npm_are_skipped_and_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vendored = load("check_vendored")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert vendored.main([]) == 0
    assert "skipped: there is no npm" in capsys.readouterr().err
    assert vendored.main(["--required"]) == 1

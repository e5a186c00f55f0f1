"""Plays stages one after another, each in a process that is stopped in time; keeps what each has found."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.stages.stages import STAGES
from benchmarks.shared.places import ROOT
from benchmarks.shared.report import markdown_table

NEEDS_GPU = "needs a GPU with CUDA, and torch finds none on this machine"
_SEARCHED = ("src", "tests", ".")

Found = Mapping[str, Any]
"""Of a stage: its `seconds`, and its `findings` with `what`, `found` and `ok`."""


@dataclass(frozen=True)
class Play:
    """A way of playing stages: into which folder, and for how long."""

    folder: Path
    is_dry: bool = False
    copy_to: Path | None = None
    within_seconds: float = float("inf")

    @property
    def report(self) -> Path:
        return self.folder / ("gpu_day_dry.json" if self.is_dry else "gpu_day.json")


def play(names: Sequence[str], how: Play) -> dict[str, Found]:
    """Play these stages, and return what they and earlier ones found; the report is written after each."""
    how.folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Found] = json.loads(how.report.read_text()) if how.report.exists() else {}
    deadline = time.monotonic() + how.within_seconds
    for name in names:
        print(f"{name}: {STAGES[name].shows}", flush=True)
        limit = min(STAGES[name].limit_seconds, deadline - time.monotonic())
        report[name] = _play_one(name, how, max(0.0, limit))
        how.report.write_text(json.dumps(report, indent=1) + "\n")
        if how.copy_to is not None:
            shutil.copy(how.report, how.copy_to)
    return report


def _play_one(name: str, how: Play, limit: float) -> Found:
    file = how.folder / f"{name}.jsonl"
    file.write_text("")
    start = time.monotonic()
    problem = _run(_command(name, file, how), limit)
    findings = [json.loads(line) for line in file.read_text().splitlines()]
    if problem:
        findings.append({"what": name, "found": problem, "ok": False})
    return {"seconds": round(time.monotonic() - start, 1), "findings": findings}


def _command(name: str, file: Path, how: Play) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.stages.one", name, str(file), str(how.folder)]
    return command + ["--dry-run"] * how.is_dry


def _run(command: Sequence[str], limit: float) -> str:
    """Run a program, and return what went wrong: it and what it started end at the limit."""
    searched = [str(ROOT / folder) for folder in _SEARCHED] + [os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, searched))}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait(limit)
    except BaseException as stopped:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(stopped, subprocess.TimeoutExpired):
            raise
        return f"stopped after {limit:.0f} s"
    return f"ended with code {code}" if code else ""


def has_gpu() -> bool:
    import torch  # seconds, which whoever only asks for help need not wait

    return torch.cuda.is_available()


def is_right(report: Mapping[str, Found], names: Sequence[str]) -> bool:
    """Return whether nothing that these stages found is wrong."""
    return not any(finding["ok"] is False for name in names for finding in report[name]["findings"])


def table(report: Mapping[str, Found]) -> str:
    return markdown_table("What the GPU told", list(_rows(report)))


def _rows(report: Mapping[str, Found]) -> Iterator[dict[str, str]]:
    verdicts = {True: "right", False: "WRONG", None: ""}
    for name, found in report.items():
        shown = f"{name} ({found['seconds']:.0f} s)"
        for finding in found["findings"]:
            told = str(finding["found"]).replace("|", "/")
            yield {"stage": shown, "what": finding["what"], "found": told, "": verdicts[finding["ok"]]}
            shown = ""

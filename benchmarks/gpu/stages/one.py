"""Plays one stage in a process of its own, and writes each finding as a line once it is there.

python -m benchmarks.gpu.stages.one STAGE FILE FOLDER [--dry-run]
"""

import json
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name

from benchmarks.gpu.stages.finding import Finding, Findings, Setting
from benchmarks.gpu.stages.stages import STAGES


def main(name: str, file: str, folder: str, *options: str) -> None:
    setting = Setting(Path(folder), is_pretended="--dry-run" in options)
    with Path(file).open("w") as lines:
        for finding in _found(name, setting):
            lines.write(json.dumps(asdict(finding)) + "\n")
            lines.flush()
            print(f"  {finding.what}: {finding.found}", flush=True)


def _found(name: str, setting: Setting) -> Findings:
    try:
        yield from resolve_name(f"benchmarks.gpu.stages.{STAGES[name].function}")(setting)
    except Exception as error:
        traceback.print_exc()
        yield Finding.failure(name, error)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Look up the pinned dependencies in a vulnerability index, by pip-audit.

    python scripts/audit_dependencies.py [--required]

Exit code 1 if one has a known vulnerability. Where no index answers nothing was checked: it says so, and
fails only with `--required`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
SERVICES = ("pypi", "osv")
_OPTIONS = ("--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off")
_PATIENCE_SECONDS = 120
SKIPPED = "skipped: no vulnerability index reachable; no dependency was checked"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--required", action="store_true", help="fail where no index answers")
    required = parser.parse_args(arguments).required
    for service in SERVICES:
        report = ask(service)
        if report is not None:
            return judge(report)
    print(f"pip-audit: {SKIPPED}", file=sys.stderr)
    return 1 if required else 0


def ask(service: str) -> list[dict[str, Any]] | None:
    """Return what an index says of each dependency; `None` if it does not answer."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS)]
    command += [*_OPTIONS, "--vulnerability-service", service]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False)
        report: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return None
    return report if any("skip_reason" not in found for found in report) else None


def judge(report: Sequence[dict[str, Any]]) -> int:
    """Print what was found, and return the exit code."""
    unknown = [found["name"] for found in report if "skip_reason" in found]
    if unknown:
        print(f"pip-audit: not in the index, and not checked: {', '.join(unknown)}", file=sys.stderr)
    vulnerable = list(_lines(report))
    for line in vulnerable:
        print(f"pip-audit: {line}", file=sys.stderr)
    if not vulnerable:
        print(f"pip-audit: {len(report) - len(unknown)} dependencies have no known vulnerability")
    return 1 if vulnerable else 0


def _lines(report: Sequence[dict[str, Any]]) -> Iterator[str]:
    for found in report:
        for vulnerability in found.get("vulns", ()):
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            yield f"{found['name']} {found['version']}: {vulnerability['id']}, fixed in {fixed}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

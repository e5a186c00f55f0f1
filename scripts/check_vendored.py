"""Make the page's vendored modules anew from their locked sources, and compare them.

    python scripts/check_vendored.py [--required]

Exit code 1 if a byte differs. Where npm or its index is missing nothing was checked: it says so, and fails
only with `--required`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = Path("scripts/web")
VENDORED = Path("src/diffuserve/web/static/vendor")
_PATIENCE_SECONDS = 120
SKIPPED = "skipped: {}; the vendored modules were not checked"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--required", action="store_true", help="fail where they cannot be made")
    required = parser.parse_args(arguments).required
    with tempfile.TemporaryDirectory() as folder:
        problem = make(Path(folder))
        if problem is not None:
            print(f"vendored: {SKIPPED.format(problem)}", file=sys.stderr)
            return 1 if required else 0
        differing = compare(Path(folder) / VENDORED, ROOT / VENDORED)
    for name in differing:
        print(f"vendored: {VENDORED / name} is not what {SOURCES} makes; run npm ci && npm run build there")
    if not differing:
        print("vendored: the page's modules are what their locked sources make")
    return 1 if differing else 0


def make(folder: Path) -> str | None:
    """Make the modules in a copy of the sources; return why that is not possible, `None` if it was."""
    if shutil.which("npm") is None:
        return "there is no npm"
    sources = folder / SOURCES
    shutil.copytree(ROOT / SOURCES, sources, ignore=shutil.ignore_patterns("node_modules"))
    (folder / VENDORED).mkdir(parents=True)
    try:
        subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--silent"],
            cwd=sources,
            check=True,
            timeout=_PATIENCE_SECONDS,
            capture_output=True,
        )
    except (subprocess.SubprocessError, OSError):
        return "npm cannot fetch the sources"
    subprocess.run(["npm", "run", "--silent", "build"], cwd=sources, check=True, capture_output=True)
    return None


def compare(made: Path, kept: Path) -> list[str]:
    """Return the names of the files that differ, or are in one folder alone."""
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (made, kept)]
    names = contents[0].keys() | contents[1].keys()
    return sorted(name for name in names if contents[0].get(name) != contents[1].get(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write the generated parts of the pages in `docs`, which are committed.

    python scripts/make_reference.py [--check]

Tables between `<!-- generated:start NAME -->` and `<!-- generated:end NAME -->` come from the declarations in
the code, or from the newest result of a benchmark. `--check` writes nothing and names the pages that differ;
exit code 1 if one does.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reference import (
    capabilities,
    chart,
    claims,
    commands,
    errors,
    fleet_engines,
    known_models,
    metrics,
    models,
    modules,
    request_fields,
    serve_peers,
    settings,
)
from reference.markdown import filled

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
PAGES: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "capabilities.md": capabilities.regions,
    "cli.md": commands.regions,
    "engine.md": request_fields.parameters,
    "errors.md": errors.regions,
    "helm-chart.md": chart.regions,
    "http-api.md": request_fields.names,
    "known-models.md": known_models.regions,
    "metrics.md": metrics.regions,
    "models.md": models.regions,
    "modules.md": modules.regions,
    "settings.md": settings.regions,
    "../explanation/claims.md": claims.regions,
    "../explanation/serving-cost.md": serve_peers.regions,
    "../how-to/run-a-fleet.md": fleet_engines.regions,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare the pages, and write nothing")
    only_checks = parser.parse_args(arguments).check
    problems = {name: update(FOLDER / name, regions(), only_checks) for name, regions in PAGES.items()}
    for name, problem in problems.items():
        if problem:
            print(f"reference: {(FOLDER / name).resolve().relative_to(ROOT)}: {problem}")
    return 1 if any(problems.values()) else 0


def update(path: Path, regions: Mapping[str, str], only_checks: bool) -> str:
    """Write a page if it differs; return what is wrong with it, nothing if it is as it should be."""
    page = path.read_text(encoding="utf-8")
    try:
        new = filled(page, regions)
    except ValueError as error:
        return str(error)
    if only_checks:
        return "" if new == page else "it differs from the declarations; run make reference"
    path.write_text(new, encoding="utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

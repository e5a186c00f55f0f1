"""Write the Helm chart from the manifests of deploy/kubernetes, and their alerts from the rules.

    python scripts/make_chart.py [--check]

The manifests are the one source: the chart has their objects, with values where people differ, whose
defaults are the manifests'. `--check` writes nothing and names the files that differ;
exit code 1 if one does.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from chart.manifests import FOLDER as MANIFESTS
from chart.templates import templates
from chart.values import schema_file, values, values_file
from diffuserve.version import __version__

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "diffuserve"
RULES = ROOT / "deploy" / "monitoring" / "alerts.yaml"
_HEAD = "# Written by scripts/make_chart.py from {}; change that, and run it again.\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare the files, and write nothing")
    only_checks = parser.parse_args(arguments).check
    changed = write({MANIFESTS / "monitoring" / "alerts.yaml": rule_object()}, only_checks)
    changed += write(chart(), only_checks)  # after the alerts, which are in it
    if only_checks:
        for path in changed:
            print(
                f"chart: {path.relative_to(ROOT)} is not what the manifests make; run scripts/make_chart.py"
            )
    return 1 if only_checks and changed else 0


def chart() -> Mapping[Path, str]:
    """Return the files of the chart that are made."""
    head, declared = _HEAD.format("deploy/kubernetes"), values()
    about = {
        "apiVersion": "v2",
        "name": "diffuserve",
        "description": "Serves diffusion models at high throughput: control planes, and workers that scale.",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": ">=1.25.0-0",
    }
    made = {
        "Chart.yaml": head + yaml.safe_dump(about, sort_keys=False, width=float("inf")),
        "values.yaml": head + values_file(declared),
        "values.schema.json": schema_file(declared),
        **{f"templates/{name}": head + text for name, text in templates().items()},
    }
    return {CHART / name: text for name, text in made.items()}


def rule_object() -> str:
    """Return the rules as the object that the Prometheus Operator reads."""
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    found = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "diffuserve",
            "namespace": "diffuserve",
            "labels": {"app.kubernetes.io/part-of": "diffuserve"},
        },
        "spec": rules,
    }
    return _HEAD.format("deploy/monitoring/alerts.yaml") + yaml.safe_dump(
        found, sort_keys=False, width=float("inf")
    )


def write(files: Mapping[Path, str], only_checks: bool) -> list[Path]:
    """Write the files that differ, unless it only checks; return them."""
    differing = {
        path: text for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text
    }
    if not only_checks:
        for path, text in differing.items():
            path.write_text(text, encoding="utf-8")
    return list(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

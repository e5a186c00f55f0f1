"""Places in the repository that benchmarks read and write."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
OUT = ROOT / "out"

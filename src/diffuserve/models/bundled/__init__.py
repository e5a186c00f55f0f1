"""Models that ship with the package."""

from pathlib import Path

_HOME = Path(__file__).parent


def bundled_models() -> dict[str, Path]:
    """Return the folders of the bundled models by name."""
    return {path.parent.name: path.parent for path in sorted(_HOME.glob("*/model_index.json"))}

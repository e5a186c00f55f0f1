"""From the command line's options to a loaded engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from diffuserve.cli.destination import slug
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.engine.engine import Engine


@dataclass(frozen=True)
class ModelChoice:
    """Which model, where and how; what is `None` is taken from the settings."""

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    deterministic: bool = False


def load_engine(choice: ModelChoice, console: Console) -> "Engine":
    """Load the model with a spinner; raises what `Engine.load` raises."""
    settings = Settings()
    model = choice.model or settings.model
    device, dtype = choice.device or settings.device, choice.dtype or settings.dtype
    with console.status(f"loading {model}"):
        from diffuserve.engine.config import EngineConfig
        from diffuserve.engine.engine import Engine
        from diffuserve.models.quiet import quiet_libraries

        quiet_libraries()
        path = cost_fit_path(settings.cache_dir, model, device, dtype)
        config = EngineConfig(deterministic=choice.deterministic, cost_fit_path=path)
        engine = Engine.load(model, device=device, dtype=dtype, config=config)
    console.print(" · ".join(f"{name} {value}" for name, value in engine.describe().items()), style="dim")
    return engine


def cost_fit_path(cache_dir: Path, model: str, device: str | None, dtype: str | None) -> Path:
    """Where the fitted cost model of this choice is kept."""
    name = "-".join([model, device or "default", dtype or "default"])
    return cache_dir / "cost_fit" / f"{slug(name, limit=120)}.json"

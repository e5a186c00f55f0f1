"""What tuning has found, kept in a file beside the cost fit: read by workers without torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path

from diffuserve.bench.conditions import read_conditions, read_cpu_name
from diffuserve.domain.codec import from_json

_GPUS = Path("/proc/driver/nvidia/gpus")
_NO_NAME = "unknown GPU"


@dataclass(frozen=True, kw_only=True)
class TunedOptions:
    """Options of an engine that tuning varies; `None` is the engine's own choice."""

    dtype: str | None = None
    num_threads: int | None = None
    token_budget: int | None = None
    max_batch_size: int | None = None

    def __str__(self) -> str:
        """Return them as a command line has them."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        words = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
        return " ".join(words) or "the defaults"

    @property
    def num_given(self) -> int:
        """Number of options that are not the engine's own choice."""
        return sum(getattr(self, each.name) is not None for each in fields(self))


DEFAULTS = TunedOptions()


@dataclass(frozen=True, kw_only=True)
class TriedOptions:
    """Options that were tried: requests a second that keep the objective, as predicted and as measured.

    `seconds` are those within which the objective's share of requests ended at the measured rate.
    """

    options: TunedOptions
    predicted_rate: float | None = None
    rate: float | None = None
    seconds: float | None = None
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The options that keep an objective at the highest rate, and what they were compared with.

    They hold for one `machine`, told by its parts and versions. `cost_fit` names the file of the fit of this
    dtype, in the folder of the cost fits.
    """

    model: str
    slo: str
    workload: str
    options: TunedOptions
    cost_fit: str
    machine: Mapping[str, str]
    date: str
    tried: tuple[TriedOptions, ...] = ()
    is_complete: bool = True

    def other_machine(self) -> str | None:
        """Return what differs on this machine; `None` if nothing does."""
        here = read_tuning_machine()
        differing = [name for name in self.machine if self.machine[name] != here.get(name)]
        told = [f"{name} was {self.machine[name]} and is {here.get(name, 'none')}" for name in differing]
        return "; ".join(told) or None


def read_tuning_machine() -> dict[str, str]:
    """Return what decides how fast an engine is here; no torch is imported."""
    read = read_conditions(("torch",))
    gpus = ", ".join(sorted(map(_gpu_name, _GPUS.iterdir()))) if _GPUS.is_dir() else "none"
    return {
        "CPU": read["cpu"] or read_cpu_name(),
        "CPU flags": read["cpu flags"],
        "GPU": gpus,
        "torch": read["torch"],
        "diffuserve": version("diffuserve"),
    }


def _gpu_name(folder: Path) -> str:
    try:
        lines = (folder / "information").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _NO_NAME
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), _NO_NAME)


def tuning_path(cost_fit_path: Path) -> Path:
    """Return the file of what was found for the model, device and dtype whose cost fit is at a path."""
    return cost_fit_path.parent.parent / "tuned" / cost_fit_path.name


def load_tuning(path: Path) -> Tuning | None:
    """Return what was kept, or `None` if nothing readable was."""
    try:
        return from_json(Tuning, path.read_bytes())
    except (OSError, ValueError):
        return None


def save_tuning(path: Path, tuning: Tuning) -> None:
    """Keep what was found; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(tuning), indent=2), encoding="utf-8")
    partial.replace(path)

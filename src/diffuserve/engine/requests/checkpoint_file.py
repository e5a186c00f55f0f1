"""The file of a checkpoint: safetensors with a versioned header, refused unless it is complete."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from diffuserve.domain.errors import CheckpointUnusable, NoCheckpoint
from diffuserve.domain.jobs.checkpoint import FORMAT, Identity
from diffuserve.engine.outputs import Timings
from diffuserve.engine.requests.checkpoint import Checkpoint
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.engine.requests.tensor_file import (
    DamagedFile,
    TensorFile,
    check_bounds,
    read_tensors,
    write_tensors,
)
from diffuserve.models.pipelines.run_progress import RunProgress
from diffuserve.samplers.base import NoiseSchedule

_LISTS = ("memory", "guides", "generators")
_SCHEDULE = ("sigmas", "timesteps", "input_scales")


def write_checkpoint(path: Path, checkpoint: Checkpoint, max_bytes: int) -> None:
    """Write a checkpoint. Raise `NoCheckpoint` if it is larger than was predicted."""
    content = TensorFile(_tensors(checkpoint), _texts(checkpoint))
    num_bytes = sum(tensor.nbytes for tensor in content.tensors.values())
    if num_bytes > max_bytes:
        raise NoCheckpoint(f"the checkpoint has {num_bytes:,} bytes, and {max_bytes:,} were predicted")
    write_tensors(path, content)
    try:
        check_bounds(path, max_bytes)
    except ValueError as error:  # too many tensors
        raise NoCheckpoint(f"the file of the checkpoint could not be read: {error}") from error


def read_checkpoint(path: Path, max_bytes: int) -> Checkpoint:
    """Return a checkpoint of at most so many bytes.

    Raise `CheckpointUnusable` for a damaged file and for another version of the format. Its identity is
    checked by the engine that resumes it.
    """
    try:
        content = read_tensors(path, max_bytes)
        if (version := content.texts.get("format")) != FORMAT:
            raise CheckpointUnusable(f"the checkpoint is of format {version!r}, not {FORMAT!r}")
        return _checkpoint(content)
    except (DamagedFile, ValueError, KeyError, TypeError) as error:
        raise CheckpointUnusable(f"the file of the checkpoint is damaged: {error}") from error


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    progress, schedule = checkpoint.progress, checkpoint.schedule
    single = {"latents": progress.latents, "noise": progress.noise}
    tensors = {name: tensor for name, tensor in single.items() if tensor is not None}
    for index, run in enumerate(progress.runs):
        tensors |= _run_tensors(f"run.{index}", run)
    for name in _LISTS:
        tensors |= {f"{name}.{index}": tensor for index, tensor in enumerate(getattr(progress, name))}
    return tensors | {
        name: torch.tensor(getattr(schedule, name), dtype=torch.float64)
        for name in _SCHEDULE
        if getattr(schedule, name)
    }


def _run_tensors(name: str, run: RunProgress) -> dict[str, Tensor]:
    tensors = {f"{name}.steps": torch.tensor(run.steps, dtype=torch.int64)}
    if run.generator is not None:
        tensors[f"{name}.generator"] = run.generator
    for scheduler, kept in enumerate(run.kept):
        tensors |= {f"{name}.{scheduler}.{index}": tensor for index, tensor in enumerate(kept)}
    return tensors


def _texts(checkpoint: Checkpoint) -> dict[str, str]:
    schedule = checkpoint.schedule
    numbers = {"step": checkpoint.step, "start": schedule.start, "init_scale": schedule.init_scale}
    return {
        "format": FORMAT,
        **checkpoint.identity.to_dict(),
        "numbers": orjson.dumps(numbers).decode(),
        "timings": orjson.dumps(asdict(checkpoint.timings)).decode(),
    }


def _checkpoint(content: TensorFile) -> Checkpoint:
    tensors, numbers = content.tensors, orjson.loads(content.texts["numbers"])
    progress = RequestProgress(
        step=_whole(numbers["step"]),
        latents=tensors.get("latents"),
        noise=tensors.get("noise"),
        runs=tuple(_runs(tensors)),
        **{name: _numbered(name, tensors) for name in _LISTS},
    )
    levels = {name: tuple(tensors[name].tolist()) for name in _SCHEDULE if name in tensors}
    schedule = NoiseSchedule(
        **levels, init_scale=float(numbers["init_scale"]), start=_whole(numbers["start"])
    )
    timings = _timings(orjson.loads(content.texts["timings"]))
    return Checkpoint(Identity.from_dict(content.texts), schedule, progress, timings)


def _numbered(name: str, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors `name.0`, `name.1` …; none may be missing."""
    count = sum(key.startswith(f"{name}.") for key in tensors)
    return tuple(tensors[f"{name}.{index}"] for index in range(count))


def _runs(tensors: Mapping[str, Tensor]) -> Iterator[RunProgress]:
    """Yield the runs `run.0`, `run.1` …; none may be missing."""
    for index in range(sum(key.startswith("run.") and key.endswith(".steps") for key in tensors)):
        name = f"run.{index}"
        steps = tuple(map(_whole, tensors[f"{name}.steps"].flatten().tolist()))
        kept = tuple(_numbered(f"{name}.{scheduler}", tensors) for scheduler in range(len(steps)))
        yield RunProgress(steps, kept, tensors.get(f"{name}.generator"))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _timings(values: Mapping[str, Any]) -> Timings:
    timings = Timings(**{name: float(seconds) for name, seconds in values.items()})
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in asdict(timings).values()):
        raise ValueError("its timings are no seconds")
    return timings

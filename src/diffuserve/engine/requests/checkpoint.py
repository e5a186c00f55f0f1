"""A request between two steps, which goes on here or in another engine.

A `Checkpoint` is a `RequestProgress` with what proves that it may be gone on with.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffuserve.domain.errors import CheckpointUnusable, NoCheckpoint
from diffuserve.domain.jobs.checkpoint import VALUE_BYTES, Identity, max_bytes
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.outputs import Timings
from diffuserve.engine.requests.request_progress import RequestProgress, saved_generator
from diffuserve.engine.requests.request_state import RequestState
from diffuserve.models.machine.devices import dtype_name
from diffuserve.models.pipelines.base import PackedPipeline, Pipeline
from diffuserve.samplers.base import NoiseSchedule


@dataclass(frozen=True)
class Checkpoint:
    """A request between two steps, with its schedule and the seconds spent so far."""

    identity: Identity
    schedule: NoiseSchedule
    progress: RequestProgress
    timings: Timings

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.progress.step

    @property
    def is_denoised(self) -> bool:
        """True after the last step, when only decoding remains."""
        return self.step == self.schedule.num_steps


def take(
    pipeline: Pipeline, weights: str, state: RequestState | None, progress: RequestProgress | None
) -> Checkpoint:
    """Return the checkpoint of a request. Raise `NoCheckpoint` if it has no progress to keep."""
    if not pipeline.spec.resumes:
        raise NoCheckpoint(f"{pipeline.spec.name} cannot go on from half-done work; none is kept")
    if state is None or progress is None or progress.step == 0:
        raise NoCheckpoint("the request has done no step yet, or has ended; it has no checkpoint")
    if not all(_is_finite(tensor) for tensor in progress.tensors):
        raise NoCheckpoint(f"the latents after step {progress.step} are not finite; no checkpoint is of use")
    identity, timings = identity_of(pipeline, weights, state.params), state.stopwatch.so_far()
    return Checkpoint(identity, state.schedule, replace(progress, predicted=()), timings)


def identity_of(pipeline: Pipeline, weights: str, params: GenerationParams) -> Identity:
    """Return what a checkpoint of this request belongs to; its defaults are filled in."""
    return Identity.of(pipeline.spec.name, weights, dtype_name(pipeline.dtype), params)


def max_file_bytes(pipeline: Pipeline, params: GenerationParams) -> int:
    """Return the maximum size in bytes of the file of this request's checkpoint."""
    if isinstance(pipeline, PackedPipeline):
        values = torch.Size(pipeline.latents_shape(params)).numel()
    else:
        values = pipeline.spec.latent_bytes(params) // VALUE_BYTES
    return max_bytes(values, params.num_images, len(pipeline.schedule(params).timesteps))


def check(checkpoint: Checkpoint, pipeline: Pipeline, weights: str, params: GenerationParams) -> None:
    """Raise `CheckpointUnusable` unless this engine can resume the request from the checkpoint."""
    if not pipeline.spec.resumes:
        raise CheckpointUnusable(f"{pipeline.spec.name} goes on from no half-done work")
    own = identity_of(pipeline, weights, params)
    if (found := own.difference(checkpoint.identity)) is not None:
        raise CheckpointUnusable(f"the checkpoint is of another request or engine: {found}")
    if checkpoint.schedule != pipeline.schedule(params):
        raise CheckpointUnusable("the checkpoint has another noise schedule than this model gives")
    _check_progress(checkpoint.progress, checkpoint.schedule.num_steps)
    if isinstance(pipeline, PackedPipeline):
        _check_latents(checkpoint.progress, pipeline.latents_shape(params))
    else:
        _check_runs(checkpoint, params.num_images)


def _check_progress(progress: RequestProgress, num_steps: int) -> None:
    """Raise `CheckpointUnusable` for a step that the request cannot have, and for what no step computes."""
    if not 0 < progress.step <= num_steps:
        raise CheckpointUnusable(f"the checkpoint is after step {progress.step} of {num_steps}")
    if not all(map(_is_finite, progress.tensors)):
        raise CheckpointUnusable("the checkpoint has tensors that are no finite numbers")
    of_runs = (run.generator for run in progress.runs if run.generator is not None)
    for saved in (*progress.generators, *of_runs):
        saved_generator(saved)


def _check_runs(checkpoint: Checkpoint, num_images: int) -> None:
    """Raise `CheckpointUnusable` for runs that a request cannot have; what they keep is fitted in later."""
    runs = checkpoint.progress.runs
    if len(runs) != num_images or checkpoint.is_denoised:
        raise CheckpointUnusable(f"the checkpoint has {len(runs)} unfinished runs of {num_images}")
    for run in runs:
        if len(run.kept) != len(run.steps) or (run.generator is None) != (not run.steps):
            raise CheckpointUnusable("a run of the checkpoint is incomplete")


def _check_latents(progress: RequestProgress, shape: tuple[int, ...]) -> None:
    """Raise `CheckpointUnusable` for tensors that the request cannot have."""
    given = (tensor for tensor in (progress.latents, progress.noise) if tensor is not None)
    if progress.latents is None or progress.runs:
        raise CheckpointUnusable("the checkpoint has no latents, but runs")
    if not all(tensor.is_floating_point() for tensor in progress.tensors):
        raise CheckpointUnusable("the checkpoint has latents that are no floating-point numbers")
    for tensor in (*given, *progress.memory):
        if tuple(tensor.shape) != shape:
            raise CheckpointUnusable(f"the checkpoint's latents are {tuple(tensor.shape)} instead of {shape}")
    for guide in progress.guides:
        if guide.dim() != len(shape) or guide.shape[0] not in (1, shape[0]):
            raise CheckpointUnusable(
                f"the checkpoint's guides are {tuple(guide.shape)} for latents of {shape}"
            )
    if len(progress.generators) != shape[0]:
        raise CheckpointUnusable(f"the checkpoint has {len(progress.generators)} generators of {shape[0]}")


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())

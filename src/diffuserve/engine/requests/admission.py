"""Admission: a request's needs are checked before any work."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from secrets import randbelow

from torch import Tensor

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.costs.memory import check_memory
from diffuserve.engine.requests.checkpoint import Checkpoint, check, take
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.engine.requests.request_state import DEFAULT_OPTIONS, RequestState, ServingOptions
from diffuserve.engine.requests.swapping import go_on_from
from diffuserve.media.input_image import load_input
from diffuserve.models.adapters.sources import AdapterSources
from diffuserve.models.pipelines.base import PackedPipeline, Pipeline, packed

Request = str | GenerationParams
"""A request, or its prompt alone."""
_RANDOM_SEEDS = 2**32


class RequestAdmission:
    """Admits requests to an engine, and gives checkpoints that they can be admitted with.

    `read_weights_hash` tells the engine's weights apart; it may take long the first time. `read_progress`
    returns what a request would go on from, and `sources` are the adapters that have names.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        memory_budget: int,
        read_weights_hash: Callable[[], str],
        read_progress: Callable[[RequestState], RequestProgress | None],
        sources: AdapterSources,
    ) -> None:
        self._sources = sources
        self._pipeline, self._memory_budget = pipeline, memory_budget
        self._read_weights_hash, self._read_progress = read_weights_hash, read_progress

    def admit(
        self,
        params: GenerationParams,
        options: ServingOptions = DEFAULT_OPTIONS,
        latents: Tensor | None = None,
        resume: Checkpoint | None = None,
    ) -> RequestState:
        """Return the state of a new request. Raise as `admitted`, `new_state` and `resumed` do."""
        is_denoised = latents is not None or (resume is not None and resume.is_denoised)
        seed = randbelow(_RANDOM_SEEDS)
        resolved = admitted(self._pipeline, params, seed, self._memory_budget, options, is_denoised)
        if resolved.adapters:
            resolved = replace(resolved, adapters=self._sources.with_digests(tuple(resolved.adapters)))
        state = new_state(self._pipeline, resolved, options, latents)
        return state if resume is None else resumed(state, self._pipeline, resume, self._read_weights_hash())

    def checkpoint(self, state: RequestState | None) -> Checkpoint:
        """Return the checkpoint of a request between two steps. Raise `NoCheckpoint` if it has none."""
        progress = None if state is None else self._read_progress(state)
        return take(self._pipeline, self._read_weights_hash(), state, progress)


def params_of(request: Request) -> GenerationParams:
    return GenerationParams(prompt=request) if isinstance(request, str) else request


def admitted(
    pipeline: Pipeline,
    params: GenerationParams,
    seed: int,
    memory_budget: int,
    options: ServingOptions = DEFAULT_OPTIONS,
    decode_only: bool = False,
) -> GenerationParams:
    """Return the parameters with every default filled in, and the pixels of their images.

    Raise `InvalidParams` if the model does not support the request, or if one of its phases needs more memory
    than there is. Raise `RuntimeError` if a phase needs parts of the model that are not loaded.
    """
    _check_packed(pipeline, is_whole=not options.until_denoised and not decode_only)
    _check_parts(pipeline.parts, decodes=not options.until_denoised, denoises=not decode_only)

    def needed(params: GenerationParams) -> int:
        step = 0 if decode_only else pipeline.step_bytes(pipeline.spec.workload(params))
        return step if options.until_denoised else max(step, decode_bytes(pipeline, params))

    resolved = pipeline.spec.resolve(with_pixels(params), seed)
    check_memory(pipeline.spec, resolved, needed, memory_budget)
    return resolved


def _check_packed(pipeline: Pipeline, is_whole: bool) -> None:
    if not is_whole and not isinstance(pipeline, PackedPipeline):
        raise RuntimeError(f"{pipeline.spec.name} runs requests whole: none brings or ends with latents")


def _check_parts(parts: Parts, denoises: bool, decodes: bool) -> None:
    if denoises and not (parts.encoding and parts.denoising):
        raise RuntimeError("this engine has loaded no parts that denoise; it takes finished latents alone")
    if decodes and not parts.decoding:
        raise RuntimeError("this engine has loaded no decoder; its requests must end with their latents")


def decode_bytes(pipeline: Pipeline, params: GenerationParams) -> int:
    """Return the bytes that decoding a clip takes; 0 for images, for which later steps make room."""
    return 0 if (params.num_frames or 1) == 1 else pipeline.decode_bytes(params)


def with_pixels(params: GenerationParams) -> GenerationParams:
    """Return the parameters with the pixels of their input images, read from files."""
    return params.with_images(load_input)


def finished_latents(pipeline: Pipeline, params: GenerationParams, latents: Tensor) -> Tensor:
    """Return latents on the pipeline's device. Raise `InvalidParams` if they do not fit the request."""
    shape, wanted = tuple(latents.shape), packed(pipeline).latents_shape(params)
    if shape != wanted or not latents.is_floating_point():
        found = f"{str(latents.dtype).removeprefix('torch.')} {shape}"
        raise InvalidParams("latents", found, f"must be floating-point numbers of the shape {wanted}")
    return latents.to(pipeline.device)


def new_state(
    pipeline: Pipeline, resolved: GenerationParams, options: ServingOptions, latents: Tensor | None
) -> RequestState:
    """Return the state of a new request, which starts from noise or has finished latents.

    Raise `InvalidParams` if the latents do not fit the request.
    """
    if latents is not None:
        latents = finished_latents(pipeline, resolved, latents)
    workload, schedule = pipeline.spec.workload(resolved), pipeline.schedule(resolved)
    return RequestState(
        request_id=uuid.uuid4().hex,
        params=resolved,
        workload=workload,
        step_bytes=pipeline.step_bytes(workload),
        schedule=schedule,
        arrival=0,
        options=options,
        untried=latents is None and not pipeline.has_measured(workload),
        latents=latents,
        step=0 if latents is None else schedule.num_steps,
    )


def resumed(state: RequestState, pipeline: Pipeline, checkpoint: Checkpoint, weights: str) -> RequestState:
    """Resume a new request from a checkpoint. Raise `CheckpointUnusable` if it belongs to another one."""
    check(checkpoint, pipeline, weights, state.params)
    go_on_from(state, checkpoint.progress, pipeline.device)
    state.stopwatch.earlier = checkpoint.timings
    return state

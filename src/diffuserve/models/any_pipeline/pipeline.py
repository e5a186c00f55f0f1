"""A loaded pipeline of diffusers, whose requests run by themselves and share its models' passes."""

import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.models.any_pipeline.arguments import call_arguments
from diffuserve.models.any_pipeline.configs import DENOISERS
from diffuserve.models.any_pipeline.hooks import hook_models, own_copy
from diffuserve.models.any_pipeline.loading import load_pipe
from diffuserve.models.any_pipeline.own_warnings import catch_warnings
from diffuserve.models.any_pipeline.passes import Passes
from diffuserve.models.any_pipeline.proven import SHARE_PASSES
from diffuserve.models.any_pipeline.results import media_of, size_warnings
from diffuserve.models.any_pipeline.run import Run
from diffuserve.models.any_pipeline.signature import Signature, read_signature
from diffuserve.models.any_pipeline.steps_told import StepsTold
from diffuserve.models.base import RunningStep
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.frames import Media
from diffuserve.models.loaded_pipeline import LoadedPipeline, with_dtype
from diffuserve.models.machine.devices import flops_per_second
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.samplers.base import NoiseSchedule


class AnyRequest:
    """A request: a run for each of its images."""

    def __init__(self, params: GenerationParams, runs: Sequence[Run]) -> None:
        self.params, self.runs = params, runs
        self.size_warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the pipeline said of the request, each sentence once."""
        said = chain.from_iterable(run.warnings for run in self.runs)
        return tuple(dict.fromkeys([*said, *self.size_warnings]))

    def close(self) -> None:
        for run in self.runs:
            run.close()


class AnyPipeline(LoadedPipeline):
    """A pipeline of any class. Requests of classes whose merging is proven share passes."""

    def __init__(self, pipe: Any, signature: Signature, spec: ModelSpec, plan: LoadPlan) -> None:
        super().__init__(spec, plan)
        self._pipe, self._signature = pipe, signature
        self.shares_passes = signature.name in SHARE_PASSES and not plan.deterministic
        self.passes = Passes(self.shares_passes)
        self._turn = threading.Lock()
        hook_models(pipe.components)
        catch_warnings()

    def describe(self) -> Mapping[str, str]:
        shared = "shared" if self.shares_passes else "one request at a time"
        return {**self.described("diffusers' own"), "run by": "diffusers", "passes": shared}

    def cost_prior(self) -> CostFit:
        denoiser = getattr(self._pipe, "transformer", None) or self._pipe.unet
        num_parameters = sum(parameter.numel() for parameter in denoiser.parameters())
        token_seconds = 2 * num_parameters / flops_per_second(self.device, self.dtype)
        return CostFit((2e-3, 1e-5), (2e-3, token_seconds, 1e-9, 1e-4), (5e-3, 1e-7))

    def step_bytes(self, workload: Workload) -> int:
        return workload.step_tokens * 4096 * 32

    def decode_bytes(self, params: GenerationParams) -> int:
        return (params.width or 0) * (params.height or 0) * (params.num_frames or 1) * 4096

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        """Return levels that count the steps down; the pipeline has its own."""
        count = self.spec.num_steps(params)
        levels = tuple(float(count - index) for index in range(count + 1))
        return NoiseSchedule(levels, levels[:-1])

    def conditioning_key(self, params: GenerationParams) -> Hashable | None:
        return None

    def begin(self, params: GenerationParams) -> AnyRequest:
        return AnyRequest(params, [self._run(params, index) for index in range(params.num_images)])

    def encode(self, requests: Sequence[AnyRequest]) -> list[Exception | None]:
        runs = [run for request in requests for run in request.runs]
        failures = self.passes.lead(runs, lambda run: run.is_denoising or run.is_decoding)
        return [_failure(request, request.runs, failures) for request in requests]

    def step(self, steps: Sequence[RunningStep[AnyRequest]]) -> list[Exception | None]:
        wanted = [_runs(step.request, step.images) for step in steps]
        step_of = {run: step for step, runs in zip(steps, wanted, strict=True) for run in runs}

        def has_arrived(run: Run) -> bool:
            step = step_of[run]
            return run.is_decoding or run.steps.has_done(step.index, step.count)

        failures = self.passes.lead(list(step_of), has_arrived)
        return [_failure(step.request, runs, failures) for step, runs in zip(steps, wanted, strict=True)]

    def decode(
        self, requests: Sequence[AnyRequest], images: Sequence[range]
    ) -> list[list[Media] | Exception]:
        wanted = [_runs(*pair) for pair in zip(requests, images, strict=True)]
        failures = self.passes.lead(list(chain.from_iterable(wanted)), lambda run: False)
        return [
            _failure(request, runs, failures) or self._media(request, runs)
            for request, runs in zip(requests, wanted, strict=True)
        ]

    def _run(self, params: GenerationParams, index: int) -> Run:
        steps = StepsTold(self.spec.num_steps(params))
        arguments = call_arguments(self._signature, self.spec, params, index)
        return Run(partial(own_copy(self._pipe, steps), **arguments), self._turn, steps)

    def _media(self, request: AnyRequest, runs: Sequence[Run]) -> list[Media] | Exception:
        try:
            media = [media_of(run.result, self.spec.sample_rate) for run in runs]
        except (FloatingPointError, ValueError) as error:
            return error
        request.size_warnings = size_warnings(media[0].frames, request.params)
        return media


def _runs(request: AnyRequest, images: range) -> Sequence[Run]:
    return request.runs[images.start : images.stop]


def _failure(request: AnyRequest, runs: Sequence[Run], failures: Mapping[Run, Exception]) -> Exception | None:
    """Return the first exception of a request's runs; a pipeline's refusal names a field."""
    run = next((run for run in runs if run in failures), None)
    if run is None:
        return None
    error = failures[run]
    is_refusal = run.num_calls == 0 and isinstance(error, TypeError | ValueError)
    return _refusal(request.params, str(error)) if is_refusal else error


def _refusal(params: GenerationParams, reason: str) -> InvalidParams:
    field = next((name for name in FIELDS if name in reason and name != "prompt"), "prompt")
    value = getattr(params, field)
    return InvalidParams(field, value, f"the model refuses it: {reason}")


def load_any_pipeline(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> AnyPipeline:
    """Load a folder whose files and components were checked: no code of it runs, and no pickle is read."""
    signature = read_signature(folder.pipeline_class)
    assert signature is not None
    denoiser = next(name for name in DENOISERS if folder.index.get(name))
    plan = with_dtype(plan, folder, denoiser, half=torch.bfloat16)
    return AnyPipeline(load_pipe(folder, signature, plan), signature, spec, plan)

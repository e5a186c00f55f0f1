"""A loaded pipeline of diffusers, whose requests run by themselves and share its models' passes."""

import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.any_pipeline.adapters.adapted_layers import AdaptedLayers, by_component
from diffuserve.models.families.any_pipeline.arguments import call_arguments
from diffuserve.models.families.any_pipeline.loading import load_pipe
from diffuserve.models.families.any_pipeline.previews import LatentPreviews
from diffuserve.models.families.any_pipeline.proven import MIX_ADAPTERS, SHARE_PASSES
from diffuserve.models.families.any_pipeline.reading.configs import DENOISERS
from diffuserve.models.families.any_pipeline.reading.operations import OperationCount, count_operations
from diffuserve.models.families.any_pipeline.reading.signature import Signature, read_signature
from diffuserve.models.families.any_pipeline.residency import waiting_components
from diffuserve.models.families.any_pipeline.results import layers_of, media_of, size_warnings
from diffuserve.models.families.any_pipeline.running.hooks import hook_models, own_copy
from diffuserve.models.families.any_pipeline.running.measured_memory import MeasuredMemory, PeakMeter
from diffuserve.models.families.any_pipeline.running.nested import storage_bytes
from diffuserve.models.families.any_pipeline.running.own_warnings import catch_warnings
from diffuserve.models.families.any_pipeline.running.passes import Passes, Sharing
from diffuserve.models.families.any_pipeline.running.refusals import refusal_of
from diffuserve.models.families.any_pipeline.running.replay import Replay, Replies
from diffuserve.models.families.any_pipeline.running.run import Run
from diffuserve.models.families.any_pipeline.running.steps_told import StepsTold
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.frames import Media
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.machine.devices import flops_per_second
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.base import RunningStep
from diffuserve.models.pipelines.loaded_pipeline import LoadedPipeline, with_dtype
from diffuserve.models.pipelines.run_progress import RunProgress
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.samplers.base import NoiseSchedule

_WIDEST_AT_ONCE = 4  # tensors of a block's widest features that live at a time, before any was measured
_FEATURES_OF_PIXEL = 1024  # numbers of a decoder's last layers for each pixel, likewise


class AnyRequest:
    """A request: a run for each of its images, or one for all, if they are layers of one picture."""

    def __init__(self, params: GenerationParams, runs: Sequence[Run], adapters: Uses = ()) -> None:
        self.params, self.runs, self.adapters = params, runs, adapters
        self.own_warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about the request, each once: of the pipeline, and our own."""
        said = chain.from_iterable(run.warnings for run in self.runs)
        return tuple(dict.fromkeys([*said, *self.own_warnings]))

    @property
    def held_bytes(self) -> int:
        """Bytes of what its parked calls are given, and of what new runs would go on from."""
        return sum(map(_held_bytes, self.runs))

    @property
    def num_calls(self) -> int:
        """Number of calls of models by its runs."""
        return sum(run.num_calls for run in self.runs)

    def progress(self) -> tuple[RunProgress, ...]:
        return tuple(RunProgress() if run.replay is None else run.replay.progress() for run in self.runs)

    def close(self) -> None:
        for run in self.runs:
            run.close()


class AnyPipeline(LoadedPipeline):
    """A pipeline of any class. Requests of classes whose merging is proven share passes."""

    def __init__(
        self,
        pipe: Any,
        signature: Signature,
        spec: ModelSpec,
        plan: LoadPlan,
        operations: OperationCount,
        previews: LatentPreviews | None,
    ) -> None:
        super().__init__(spec, plan)
        self._pipe, self._signature, self._previews = pipe, signature, previews
        self.shares_passes = signature.name in SHARE_PASSES and not plan.deterministic
        self.passes = Passes(self.sharing)
        self._adapted = AdaptedLayers(pipe.components, plan.device)
        self._replies = Replies()
        self._turn = threading.Lock()
        self._operations = operations
        meter, item = PeakMeter(plan.device), self.dtype.itemsize
        self._step_memory = MeasuredMemory(meter, _WIDEST_AT_ONCE * self._operations.widest * item)
        self._decode_memory = MeasuredMemory(meter, _FEATURES_OF_PIXEL * item)
        hook_models(pipe.components)
        catch_warnings()

    def describe(self) -> Description:
        shared = "shared" if self.shares_passes else "one request at a time"
        return {**self.described("diffusers' own"), "run by": "diffusers", "passes": shared}

    def cost_prior(self) -> CostFit:
        fit = self._operations.fit(flops_per_second(self.device, self.dtype))
        return self.residency.slowed(fit, self.device.type)

    @property
    def sharing(self) -> Sharing:
        """Which requests share passes: by what was shown of the class."""
        if not self.shares_passes:
            return Sharing.NONE
        return Sharing.ALL if self._signature.name in MIX_ADAPTERS else Sharing.EQUAL_ADAPTERS

    def place_adapter(self, name: str, components: Components) -> Adapter:
        return self._adapted.place(name, components)

    def components(self) -> Sequence[Component]:
        return list(waiting_components(self._pipe.components))

    def step_bytes(self, workload: Workload) -> int:
        return self._step_memory.bytes_of(workload.step_tokens)

    def decode_bytes(self, params: GenerationParams) -> int:
        return self._decode_memory.bytes_of(self._pixels(params))

    def has_measured(self, workload: Workload) -> bool:
        return self._step_memory.has_measured(workload.sequence_tokens)

    def schedule(self, params: GenerationParams) -> NoiseSchedule:
        """Return levels that count the steps down; the pipeline has its own."""
        count = self.spec.num_steps(params)
        levels = tuple(float(count - index) for index in range(count + 1))
        return NoiseSchedule(levels, levels[:-1])

    def conditioning_key(self, params: GenerationParams) -> Hashable | None:
        return None

    def begin(
        self, params: GenerationParams, progress: Sequence[RunProgress] = (), adapters: Uses = ()
    ) -> AnyRequest:
        num_runs = 1 if self.spec.has_layers else params.num_images
        begins_at = progress or [RunProgress()] * num_runs
        own = by_component(adapters)
        runs = [self._run(params, index, progress, own) for index, progress in enumerate(begins_at)]
        return AnyRequest(params, runs, adapters)

    def encode(self, requests: Sequence[AnyRequest]) -> list[Exception | None]:
        runs = [run for request in requests for run in request.runs]
        failures = self.passes.lead(runs, _is_encoded)
        return [_failure(request, request.runs, failures) for request in requests]

    def step(self, steps: Sequence[RunningStep[AnyRequest]]) -> list[Exception | None]:
        wanted = [_runs(step.request, step.images) for step in steps]
        step_of = {run: step for step, runs in zip(steps, wanted, strict=True) for run in runs}

        def has_arrived(run: Run) -> bool:
            step = step_of[run]
            return run.is_decoding or run.steps.has_done(step.index, step.count)

        lengths = [self.spec.workload(step.request.params).sequence_tokens for step in steps]
        failures = self._step_memory.run(
            size=sum(
                length * len(runs) * self.spec.num_passes(step.request.params)
                for step, runs, length in zip(steps, wanted, lengths, strict=True)
            ),
            length=max(lengths),
            work=lambda: self.passes.lead(list(step_of), has_arrived),
        )
        return [_failure(step.request, runs, failures) for step, runs in zip(steps, wanted, strict=True)]

    def previews(self, request: AnyRequest) -> tuple[Tensor, ...]:
        if self._previews is None:
            return ()
        drawn = [self._previews.draw(run.stepped, request.params) for run in request.runs]
        return tuple(levels for levels in drawn if levels is not None)

    def decode(
        self, requests: Sequence[AnyRequest], images: Sequence[range]
    ) -> list[list[Media] | Exception]:
        wanted = [_runs(*pair) for pair in zip(requests, images, strict=True)]
        runs = list(chain.from_iterable(wanted))
        pixels = [self._pixels(request.params) for request in requests]
        failures = self._decode_memory.run(
            size=sum(each * len(of) for each, of in zip(pixels, images, strict=True)),
            length=max(pixels, default=0),
            work=lambda: self.passes.lead(runs, lambda run: False),
        )
        return [
            _failure(request, runs, failures) or self._media(request, runs)
            for request, runs in zip(requests, wanted, strict=True)
        ]

    def _pixels(self, params: GenerationParams) -> int:
        return (params.width or 0) * (params.height or 0) * (params.num_frames or 1)

    def _run(
        self, params: GenerationParams, index: int, begins_at: RunProgress, adapters: Mapping[str, Uses]
    ) -> Run:
        steps = StepsTold(self.spec.num_steps(params))
        arguments = call_arguments(self._signature, self.spec, params, index)
        generator = arguments["generator"]
        replay = Replay(generator, self._replies, begins_at) if self.spec.resumes else None
        generate = partial(own_copy(self._pipe, steps), **arguments)
        return Run(generate, self._turn, steps, replay, generator.initial_seed(), adapters)

    def _media(self, request: AnyRequest, runs: Sequence[Run]) -> list[Media] | Exception:
        try:
            media = [each for run in runs for each in self._media_of(run)]
        except (FloatingPointError, ValueError) as error:
            return error
        of_size = size_warnings(media[0].frames, request.params)
        asked = request.params.adapters or ()
        request.own_warnings = (*of_size, *self._adapted.warnings(request.adapters, asked))
        return media

    def _media_of(self, run: Run) -> list[Media]:
        """Return what a run has made: one picture, clip or sound, or layers."""
        if self.spec.has_layers:
            return layers_of(run.result)
        return [media_of(run.result, self.spec.sample_rate)]


def _is_encoded(run: Run) -> bool:
    return not run.is_replaying and (run.is_denoising or run.is_decoding)


def _held_bytes(run: Run) -> int:
    given = 0 if run.call is None else storage_bytes(run.call.arguments)
    return given + (0 if run.replay is None else run.replay.held_bytes)


def _runs(request: AnyRequest, images: range) -> Sequence[Run]:
    return request.runs[images.start : images.stop]


def _failure(request: AnyRequest, runs: Sequence[Run], failures: Mapping[Run, Exception]) -> Exception | None:
    """Return the first exception of a request's runs; a pipeline's refusal names a field."""
    run = next((run for run in runs if run in failures), None)
    if run is None:
        return None
    return refusal_of(run, request.params, failures[run]) or failures[run]


def load_any_pipeline(folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> AnyPipeline:
    """Load a folder whose files and components were checked: no code of it runs, and no pickle is read."""
    signature = read_signature(folder.pipeline_class)
    assert signature is not None
    denoiser = next(name for name in DENOISERS if folder.index.get(name))
    plan = with_dtype(plan, folder, denoiser, half=torch.bfloat16)
    previews = LatentPreviews(folder, spec, plan.device) if spec.has_previews else None
    pipe = load_pipe(folder, signature, plan)
    return AnyPipeline(pipe, signature, spec, plan, count_operations(folder), previews)

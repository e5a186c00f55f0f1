"""The engine: it takes requests, steps them together and returns images.

One thread steps (the caller's, or the driver's once `submit` was used) and another decodes. `add` and
`abort` only leave a message for the stepping thread, so they are safe from any thread at any time.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from diffuserve.domain.errors import DiffuserveError, InvalidParams
from diffuserve.domain.models.cost import CostEstimate
from diffuserve.domain.models.description import Description
from diffuserve.domain.models.known_words import Vocabulary
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import DEFAULT_MODEL, EngineConfig
from diffuserve.engine.core import EngineCore
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.inbox import Inbox
from diffuserve.engine.loading import LoadedModel, adapter_pool, adapters_of, load_model, parse_plan
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.requests.admission import Request, RequestAdmission, params_of, with_pixels
from diffuserve.engine.requests.checkpoint import Checkpoint
from diffuserve.engine.requests.request_state import RequestState, ServingOptions
from diffuserve.engine.run_runner import runner_of
from diffuserve.engine.runner import Runner
from diffuserve.engine.stats import EngineStats
from diffuserve.engine.step_loop import StepLoop
from diffuserve.models.adapters.pool import Wanted
from diffuserve.models.adapters.sources import AdapterSources
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.weights.fingerprint import hash_model, with_companions

if TYPE_CHECKING:
    import torch

NO_FILES: Mapping[str, Path] = {}


class Engine(AbstractContextManager["Engine"]):
    """Step-level continuous batching over one pipeline.

    Drive it one way at a time: `generate`, or `add` and `step` by hand, or `submit` from asyncio.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        config: EngineConfig | None = None,
        runner: Runner | None = None,
        read_weights_hash: Callable[[], str] = lambda: "",
        adapters: AdapterSources | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """Start the decoder. `runner` runs the model, by default in this process alone.

        `read_weights_hash` returns what tells the weights apart, for checkpoints. `adapters` are those
        that requests may ask for. Words that are not in the `vocabulary` are told in warnings.
        """
        self.pipeline = pipeline
        self.config = config or EngineConfig()
        self.runner = runner or runner_of(pipeline)
        self.read_weights_hash = read_weights_hash
        self._inbox = Inbox()
        self._sources = adapters or AdapterSources()
        self._adapters = adapter_pool(pipeline, self._sources, self.config.adapter_bytes, self._expect)
        self._core = EngineCore(
            self.runner,
            self.config,
            on_decoded=self._inbox.announce,
            release=self._adapters.release,
            vocabulary=vocabulary,
        )
        self._admission = RequestAdmission(
            pipeline,
            self._core.budgets.memory_bytes,
            read_weights_hash,
            self.runner.progress,
            self._sources,
        )
        self._loop = StepLoop(self._core, self._inbox, self._admission.checkpoint)

    @classmethod
    def load(  # noqa: PLR0913 (each has a default of its own)
        cls,
        model: str | Path = DEFAULT_MODEL,
        *,
        device: str | None = None,
        dtype: "str | torch.dtype | None" = None,
        config: EngineConfig | None = None,
        parts: Parts = ALL_PARTS,
        quantization: str | None = None,
        offload: str | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        controlnets: Mapping[str, str | Path] | None = None,
        image_prompter: str | Path | None = None,
    ) -> "Engine":
        """Load a bundled model, a diffusers folder or a hub id; a `Path` is always a folder.

        Without the `parts` for decoding, requests must end `until_denoised`; without those for denoising,
        they must bring `latents`. `device` is "cpu" or "cuda[:n]" (default: CUDA if there is a device).
        `dtype` is "bfloat16", "float16" or "float32" ("bf16", "fp16" or "fp32" for short) or a torch dtype.
        It defaults to the checkpoint's; a CPU without bf16 instructions uses float32 instead of bf16.
        `quantization` is "none", "int8", "fp8" or "int4"; by default the folder's own. `offload` is "none",
        "text", "model" or "layers". `adapters` are safetensors files by the names that requests use, and
        `controlnets` folders of ControlNets. `image_prompter` is an IP-Adapter's file, or the folder of
        FLUX.1 Redux. Raises `ModelNotFound`, `InvalidModel`, `InvalidAdapter`, `DeviceUnavailable`.
        """
        config = config or EngineConfig()
        plan = parse_plan(device, dtype, quantization, offload, config.deterministic, parts)
        plan = replace(plan, companions=companions_of(controlnets or {}, image_prompter))
        sources = adapters_of(model, adapters or {})
        return cls.of(load_model(model, plan), config, sources)

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        config: EngineConfig,
        adapters: AdapterSources | None = None,
    ) -> "Engine":
        """Return an engine that runs a loaded model; `adapters` are those that it may be asked for."""

        @cache
        def read_hash() -> str:
            weights = hash_model(model.name, model.pipeline.quantization)
            return with_companions(weights, model.companions)

        return cls(
            model.pipeline,
            config,
            read_weights_hash=read_hash,
            adapters=adapters,
            vocabulary=model.vocabulary,
        )

    @property
    def spec(self) -> ModelSpec:
        return self.pipeline.spec

    @property
    def stats(self) -> EngineStats:
        return self._core.stats

    @property
    def cost_model(self) -> CostModel:
        return self._core.cost_model

    @property
    def token_budget(self) -> int:
        """Tokens that may share one denoising step."""
        return self._core.budgets.tokens

    @property
    def adaptive_limit(self) -> int | None:
        """Tokens that may share a step now, where an objective is followed."""
        return self._core.adaptive.limited(self.token_budget) if self._core.adaptive.follows else None

    @property
    def good_share(self) -> float | None:
        """Share of the latest requests, in 0…1, that kept the objective; `None` until there were enough."""
        return self._core.adaptive.good_share

    @property
    def predicted_seconds(self) -> float:
        """Predicted duration in seconds of the work now running."""
        return self._core.predicted_seconds

    @property
    def num_unfinished(self) -> int:
        """Number of requests that were added and have no outcome yet."""
        return len(self._inbox.unfinished)

    def awaits_adapters(self, request_id: str) -> bool:
        """Return whether a request's adapters are not in memory yet."""
        return self._inbox.holds(request_id)

    @property
    def num_awaiting_adapters(self) -> int:
        """Number of unfinished requests whose adapters are not in memory yet."""
        return self._inbox.num_held

    @property
    def resident_adapters(self) -> Sequence[str]:
        """The digests of the adapters in memory, the most recently used first."""
        return self._adapters.digests

    def describe(self) -> Description:
        """Return the choices made for this model and machine: dtype, kernel, budget…"""
        return {**self.pipeline.describe(), "token_budget": self.token_budget}

    def estimate(self, params: GenerationParams) -> CostEstimate:
        """Predict the device-seconds of a request that has the device to itself.

        Raise `InvalidParams` if the model cannot do what is asked.
        """
        resolved = self.spec.resolve(with_pixels(params), seed=0)
        return self.cost_model.estimate(self.spec.workload(resolved))

    def add(  # noqa: PLR0913 (each has a default of its own)
        self,
        params: GenerationParams,
        *,
        priority: int = 0,
        preview: bool | Collection[int] = False,
        alone: bool = False,
        stream_frames: bool = False,
        until_denoised: bool = False,
        latents: "torch.Tensor | None" = None,
        resume: Checkpoint | None = None,
        tenant: str = "",
        files: Mapping[str, Path] = NO_FILES,
    ) -> str:
        """Queue a request and return its id; larger `priority` goes first. Safe from any thread.

        With `preview` the outputs of its steps have previews; a set of numbers, from 1 on, selects steps. A
        request that is `alone` shares no step with others. With `stream_frames` the frames of clips arrive
        as `StepOutput.chunk` while the request runs, and its result has none.

        A request `until_denoised` ends after its last step, with the latents in its result. A request with
        such `latents`, from this engine or another one with the same model, is only decoded.

        A request with a checkpoint to `resume` continues after the checkpoint's step. Raise
        `CheckpointUnusable` if the checkpoint has other weights, other parameters or another model.

        Adapters that have digests come from `files`, verified ones by those; tenants take turns to have
        theirs loaded.

        Raise `InvalidParams` before any work if the model does not support the request, and `EngineClosed`.
        """
        options = ServingOptions(
            priority=priority,
            preview=preview if isinstance(preview, bool) else frozenset(preview),
            alone=alone,
            stream_frames=stream_frames,
            until_denoised=until_denoised,
            tenant=tenant,
        )
        state = self._admission.admit(params, options, latents, resume)
        self._enter(state, files)
        return state.request_id

    def checkpoint(self, request_id: str) -> Checkpoint:
        """Return a checkpoint to `resume` in an engine with the same weights; the request goes on here too.

        Safe from any thread. Raise `NoCheckpoint` if the request has done no step yet or has ended.
        """
        self.read_weights_hash()  # on this thread: the first time it may take long
        return self._loop.checkpoint(request_id)

    def hold_frames(self, request_id: str) -> None:
        """Count a chunk of the request as not yet consumed. Safe from any thread.

        A chunk counts as consumed once `step` has returned it. A caller that passes the chunk to another
        thread calls this before the next `step`, and `release_frames` when that thread is done with it. A
        clip with a few unconsumed chunks pauses its decoding, while other requests go on.
        """
        self._core.decoder.hold_frames(request_id)

    def release_frames(self, request_id: str) -> None:
        """Take back one `hold_frames`; it does nothing for a request that has ended. Safe from any thread."""
        self._core.decoder.release_frames(request_id)

    def abort(self, request_id: str) -> bool:
        """Stop a request before its next step; `False` if it is unknown or finished."""
        return self._inbox.abort(request_id)

    def step(self) -> list[StepOutput]:
        """Advance the requests that the scheduler picks by one denoising step.

        Block while only decodes are outstanding, or while the engine waits for more requests to share a
        step. Return an empty list when there is nothing to do.
        """
        return self._loop.step()

    # A string is also a sequence of strings, for type checkers; the first match counts.
    @overload
    def generate(self, params: Request) -> GenerationResult: ...  # type: ignore[overload-overlap]
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, params: Request, return_exceptions: Literal[True]
    ) -> GenerationResult | DiffuserveError: ...
    @overload
    def generate(self, params: Sequence[Request]) -> list[GenerationResult]: ...
    @overload
    def generate(
        self, params: Sequence[Request], return_exceptions: Literal[True]
    ) -> list[GenerationResult | DiffuserveError]: ...
    def generate(
        self, params: Request | Sequence[Request], return_exceptions: bool = False
    ) -> GenerationResult | DiffuserveError | Sequence[GenerationResult | DiffuserveError]:
        """Generate requests together: a result for one request, a list in order for several.

        A string is a prompt; everything else is then the model's default. A failed request does not
        affect the others: its exception is raised once all are done or, with `return_exceptions`, takes
        its place in the list.
        """
        is_one = isinstance(params, str | GenerationParams)
        wanted = [params] if isinstance(params, str | GenerationParams) else params
        states = [self._admission.admit(params_of(request)) for request in wanted]  # refuse before any starts
        outcomes = self._loop.outcomes({state.request_id: self._enter(state) for state in states})
        failure = next((outcome for outcome in outcomes if isinstance(outcome, DiffuserveError)), None)
        if failure is not None and not return_exceptions:
            raise failure
        return outcomes[0] if is_one else outcomes

    async def submit(self, params: GenerationParams, *, priority: int = 0) -> GenerationResult:
        """Generate one request from asyncio; canceling the task aborts it."""
        state = self._admission.admit(params, ServingOptions(priority=priority))
        future = self._enter(state)
        self._loop.start_driver()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.abort(state.request_id)
            raise

    def close(self) -> None:
        """Stop both threads; unfinished requests fail with `EngineClosed`."""
        self._loop.close()
        self._adapters.close()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _enter(self, state: RequestState, files: Mapping[str, Path] = NO_FILES) -> "Future[GenerationResult]":
        """Add a request, which is held back until its adapters are in memory."""
        find = partial(_file_of, files)
        wanted = [(self._sources.open(use, find), use.weight) for use in state.params.adapters or ()]
        uses = self._adapters.hold(state.request_id, wanted, state.options.tenant)
        state.adapters = uses or ()
        future = self._inbox.put(state, is_ready=uses is not None)
        if uses is None:
            self._adapters.load(state.request_id, partial(self._loaded, state))
        return future

    def _expect(self, request_id: str, wanted: Wanted) -> None:
        uses = [AdapterUse(source.name, weight, source.digest) for source, weight in wanted]
        self.runner.expect(request_id, uses)

    def _loaded(self, state: RequestState, outcome: Uses | Exception) -> None:
        if isinstance(outcome, Exception):
            state.refusal = outcome
        else:
            state.adapters = outcome
        self._inbox.deliver(state.request_id)


def _file_of(files: Mapping[str, Path], digest: str) -> Path:
    if digest not in files:
        raise InvalidParams("adapters", digest, "its file was not given with the request")
    return files[digest]

"""The two sides of comparisons with pipelines of diffusers: several models, one loaded at a time on ours."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffuserve.domain.requests.params import GenerationParams


@dataclass(frozen=True)
class Models:
    """Checkpoints in `folder`, by the names of theirs, and the dtype in which both sides compute.

    `guidance` are the arguments of diffusers' calls that requests' guidance scales are passed as; models that
    have none there get none. With `has_one_core` a side runs one thread, and tells its CPU seconds.
    """

    folder: Path
    guidance: Mapping[str, str]
    dtype: str = "fp32"
    has_one_core: bool = False

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.has_one_core else time.perf_counter


class BarePipelines:
    """The pipelines of diffusers as their documentation uses them."""

    def __init__(self, models: Models) -> None:
        import torch
        from diffusers import DiffusionPipeline, logging

        logging.set_verbosity_error()  # a call's own default for guidance makes some pipelines warn
        if models.has_one_core:
            torch.set_num_threads(1)
        self._models, self._torch, self._kind = models, torch, DiffusionPipeline
        self._pipelines: dict[str, Any] = {}

    def run_all(self, name: str, requests: Sequence[GenerationParams], batch_size: int = 1) -> float:
        """Return the seconds for all requests, in calls of up to `batch_size` that may share one."""
        batches = [
            alike[start : start + batch_size]
            for alike in _alike(requests)
            for start in range(0, len(alike), batch_size)
        ]
        self._pipeline(name)
        start = self._models.clock()
        for batch in batches:
            self._call(name, batch)
        return self._models.clock() - start

    def _call(self, name: str, batch: Sequence[GenerationParams]) -> None:
        first, argument = batch[0], self._models.guidance.get(name)
        negative = [request.negative_prompt for request in batch]
        given = {
            argument: first.guidance_scale,
            "num_frames": first.num_frames,
            "negative_prompt": negative if first.negative_prompt is not None else None,
        }
        self._pipeline(name)(
            prompt=[request.prompt for request in batch],
            width=first.width,
            height=first.height,
            num_inference_steps=first.num_inference_steps,
            generator=[self._torch.Generator("cpu").manual_seed(request.seed or 0) for request in batch],
            max_sequence_length=first.max_sequence_length,
            output_type="np",
            **{name: value for name, value in given.items() if name is not None and value is not None},
        )

    def _pipeline(self, name: str) -> Any:
        if name not in self._pipelines:
            pipeline = self._kind.from_pretrained(
                str(self._models.folder / name),
                dtype=self._dtype(),
                local_files_only=True,
                trust_remote_code=False,
            )
            pipeline.set_progress_bar_config(disable=True)
            self._pipelines[name] = pipeline
        return self._pipelines[name]

    def _dtype(self) -> Any:
        return {"fp32": self._torch.float32, "bf16": self._torch.bfloat16}[self._models.dtype]


class OurEngines:
    """The engine with its default settings."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._engines: dict[str, Any] = {}

    def run_all(self, name: str, requests: Sequence[GenerationParams]) -> float:
        """Submit all requests at once; return the seconds until all are finished."""
        engine = self.engine(name)
        start = self._models.clock()
        engine.generate(requests)
        return self._models.clock() - start

    def requests_per_step(self, name: str) -> float:
        """Return the mean of the requests that shared a step since the engine was loaded."""
        return float(self.engine(name).stats.mean_requests_per_step)

    def engine(self, name: str) -> Any:
        if name not in self._engines:
            # Each engine has a pool of OpenMP threads, and two of them in a process sleep between operations.
            while self._engines:
                self._engines.popitem()[1].close()
            from diffuserve import Engine
            from diffuserve.engine.config import EngineConfig

            config = EngineConfig(num_threads=1 if self._models.has_one_core else None)
            path = str(self._models.folder / name)
            self._engines[name] = self.loaded(
                Engine.load(path, device="cpu", dtype=self._models.dtype, config=config)
            )
        return self._engines[name]

    def loaded(self, engine: Any) -> Any:
        """Return an engine that has just been loaded, ready to be used."""
        return engine


def _alike(requests: Sequence[GenerationParams]) -> list[list[GenerationParams]]:
    """Return the requests in groups that one call of a pipeline can draw."""
    groups = defaultdict[object, list[GenerationParams]](list)
    for request in requests:
        groups[
            request.width,
            request.height,
            request.num_inference_steps,
            request.guidance_scale,
            request.negative_prompt is None,
        ].append(request)
    return list(groups.values())

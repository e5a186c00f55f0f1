"""An engine of a tiny pipeline whose passes are counted, and whose results are seen unrounded."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.models.families.any_pipeline.pipeline import AnyRequest
from diffuserve.models.families.any_pipeline.running.passes import Passes
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.weights.load_plan import LoadPlan
from support.adapters import sources_of
from support.any_runs import load_any
from support.tiny_pipelines.registry import TinyPipeline
from support.tiny_pipelines.requests import TinyRequest

Levels = NDArray[np.float64]
DENOISERS = ("transformer", "unet")


class WatchedEngine:
    """An engine on one core. `rows` are those of each pass of a denoiser; `levels` are by seed."""

    def __init__(self, folder: Path, adapters: Mapping[str, Components] = MappingProxyType({})) -> None:
        self.pipeline = pipeline = load_any(folder, LoadPlan(torch.device("cpu"), torch.float32))
        self.rows: list[int] = []
        self.levels: dict[int, Levels] = {}
        pipeline.passes = Passes(pipeline.sharing, self._count)
        self._decode = pipeline.decode
        pipeline.decode = self._watched_decode  # type: ignore[method-assign]
        sources = sources_of({name: partial(adapters.__getitem__, name) for name in adapters})
        config = EngineConfig(token_budget=1_000_000, num_threads=1)
        self.engine = Engine(pipeline, config, adapters=sources)

    @property
    def scheduler(self) -> Any:
        """The scheduler that each run gets a copy of."""
        return self.pipeline._pipe.scheduler

    @property
    def transformer(self) -> Any:
        return self.pipeline._pipe.transformer

    def staggered(self, wanted: Sequence[GenerationParams]) -> list[GenerationResult | DiffuserveError]:
        """Run requests that arrive a step apart, and return the outcomes in order."""
        ids, outcomes = [], {}
        waiting = list(wanted)
        while waiting or self.engine.num_unfinished:
            if waiting:
                ids.append(self.engine.add(waiting.pop(0)))
            for output in self.engine.step():
                if output.finished:
                    outcomes[output.request_id] = output.result or output.error
        return [outcomes[each] for each in ids]  # type: ignore[misc]

    def _count(self, component: str, rows: int) -> None:
        if component.startswith(DENOISERS):
            self.rows.append(rows)

    def _watched_decode(self, requests: Sequence[AnyRequest], images: Sequence[range]) -> Any:
        decoded = self._decode(requests, images)
        for request, turn in zip(requests, images, strict=True):
            assert request.params.seed is not None
            runs = request.runs[turn.start : turn.stop]  # one for all, if they are layers
            for index, run in zip(turn, runs, strict=False):
                if run.result is not None:
                    self.levels[request.params.seed + index] = levels_of(run.result)
        return decoded


def levels_of(result: Any) -> Levels:
    """Return the picture, clip or sound of a pipeline's result, as floats."""
    names = ("images", "frames", "image", "audios")
    found = next(getattr(result, name) for name in names if hasattr(result, name))
    return np.asarray(found[0], np.float64)


def bare_levels(pipe: Any, tiny: TinyPipeline, request: TinyRequest) -> Levels:
    """Return what diffusers' own call makes of a request."""
    torch.manual_seed(request.seed)  # some classes draw from the global generator
    return levels_of(pipe(**request.bare_call(tiny)))


def decibels(left: Levels, right: Levels) -> float:
    """Return the distance of two results whose levels span 1; 150 where they are equal."""
    assert left.shape == right.shape, (left.shape, right.shape)
    return -10 * math.log10(max(float(np.mean((left - right) ** 2)), 1e-15))

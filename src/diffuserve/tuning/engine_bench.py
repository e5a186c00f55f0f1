"""Trials on an engine in this process, for one workload."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from diffuserve.bench.arrivals import Ramp, arrivals, until
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import Output, Reply
from diffuserve.bench.playing import Draw, Due, Played, Player
from diffuserve.bench.slo import Slo
from diffuserve.bench.workloads import RequestMix
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.models.cost import Workload
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.costs.cost_model import load_fit, save_fit
from diffuserve.engine.engine import Engine
from diffuserve.models.machine.cpu_products import cpu_has_bf16
from diffuserve.models.machine.devices import dtype_name
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.tuning.kept import TunedOptions
from diffuserve.tuning.predicted_rate import Compute, Saturated
from diffuserve.tuning.tuner import Trial

Load = Callable[[str | None], Pipeline]
"""Loads the model in a dtype, by its name; `None` is the engine's own choice."""

_AT_ONCE = 16
_NUM_WARM_UP = 2
_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 3600.0
_MOST_OVERTIME = 3
_NUM_SIZES = 150


class EngineBench:
    """Runs one engine after another; a pipeline is kept until another dtype is asked for."""

    def __init__(self, load: Load, config: EngineConfig, mix: RequestMix, slo: Slo, seed: int) -> None:
        self._load, self._config, self._mix, self._slo, self._seed = load, config, mix, slo, seed
        self._fits = TemporaryDirectory(prefix="diffuserve-tune-")
        self._loaded: tuple[str | None, Pipeline] | None = None
        self._spec = self._pipeline(None).spec

    def close(self) -> None:
        """Delete the fits of the trials."""
        self._fits.cleanup()

    def sizes(self) -> list[Workload]:
        """Return the sizes of the workload's first requests. Raise `InvalidParams` for bad ones."""
        spec = self._spec
        requests = islice(self._requests(), _NUM_SIZES)
        return [spec.workload(spec.resolve(params_of(each), seed=0)) for each in requests]

    def computes(self, dtypes: Sequence[str | None], num_cores: int) -> list[Compute]:
        """Return the dtypes with each number of threads, the engine's own choice first."""
        if self._pipeline(None).device.type == "cuda":
            return [Compute(dtype) for dtype in dtypes]
        fewer = sorted({max(1, num_cores // 2), 1} - {num_cores}, reverse=True)
        return [Compute(dtype, threads) for dtype in dtypes for threads in (None, *fewer)]

    def dtypes(self) -> list[str | None]:
        """Return the dtypes that may be fastest here, the engine's own choice first."""
        pipeline = self._pipeline(None)
        own = dtype_name(pipeline.dtype)
        may_be_faster = ["float32", *(["bfloat16"] if cpu_has_bf16() else [])]
        return [None, *(name for name in may_be_faster if pipeline.device.type == "cpu" and name != own)]

    async def saturate(self, compute: Compute, seconds: float) -> Saturated:
        """Draw so many requests at a time that the device always has work; learn its fit."""
        options = TunedOptions(dtype=compute.dtype, num_threads=compute.num_threads)
        with self._engine(options) as engine:
            await self._warm_up(engine)
            player = _player(engine)
            with suppress(TimeoutError):  # requests of a large model may last far longer
                async with asyncio.timeout(_MOST_OVERTIME * seconds):
                    requests = _until(self._requests(), time.monotonic() + seconds)
                    await player.play_closed(requests, _AT_ONCE)
            fit = engine.cost_model.fit
            return Saturated(
                compute=compute,
                rate=_throughput(player.played) or 1 / fit.estimate(self.sizes()[0]).seconds,
                fit=fit,
                token_budget=engine.token_budget,
                num_slots=_num_slots(engine, compute),
            )

    async def play(self, options: TunedOptions, rate: float, seconds: float) -> Trial:
        """Play the workload at a rate, until it has ended or cannot keep the objective any more."""
        with self._engine(options) as engine:
            await self._warm_up(engine)
            due = until(seconds, arrivals(Ramp.steady(rate), 1.0, self._seed))
            dues = [Due(asked, second) for asked, second in zip(self._requests(), due, strict=False)]
            player = _player(engine)
            await _play_while_possible(player, dues, self._slo)
            return _trial(player.played, len(dues), self._slo)

    def keep_fit(self, options: TunedOptions, path: Path) -> None:
        """Keep the fit that the trials of these options have learned, if they have."""
        fit = load_fit(self._fit_path(options))
        if fit is not None:
            save_fit(path, fit)

    def _engine(self, options: TunedOptions) -> Engine:
        config = replace(
            self._config,
            num_threads=options.num_threads or self._config.num_threads,
            token_budget=options.token_budget or self._config.token_budget,
            max_batch_size=options.max_batch_size or self._config.max_batch_size,
            cost_fit_path=self._fit_path(options),
        )
        return Engine(self._pipeline(options.dtype), config)

    def _fit_path(self, options: TunedOptions) -> Path:
        return Path(self._fits.name) / f"{options.dtype}-{options.num_threads}.json"

    def _pipeline(self, dtype: str | None) -> Pipeline:
        if self._loaded is None or self._loaded[0] != dtype:
            self._loaded = None  # before the next one takes its memory
            self._loaded = (dtype, self._load(dtype))
        return self._loaded[1]

    def _requests(self) -> Iterator[LoadRequest]:
        return self._mix.requests(self._seed, base_side_of(self._spec))

    async def _warm_up(self, engine: Engine) -> None:
        for asked in islice(self._requests(), _NUM_WARM_UP):
            await engine.submit(params_of(asked))


def base_side_of(spec: ModelSpec) -> int:
    """Return the side of a square with as many pixels as the model's own pictures."""
    return math.isqrt(spec.width * spec.height)


def params_of(asked: LoadRequest) -> GenerationParams:
    """Return the parameters of a request of a workload."""
    size = {"width": asked.width, "height": asked.height}
    return GenerationParams.from_dict({"prompt": asked.prompt, **size, **asked.fields})


def _player(engine: Engine) -> Player:
    return Player(_draw_on(engine), _PATIENCE_SECONDS, check=lambda _asked, _outputs: None)


def _draw_on(engine: Engine) -> Draw:
    async def draw(asked: LoadRequest) -> Reply:
        band = Band(asked.priority or Band.STANDARD)
        result = await engine.submit(params_of(asked), priority=-band.rank)
        return Reply(tuple(Output(b"") for _ in result.media))

    return draw


def _until(requests: Iterator[LoadRequest], end: float) -> Iterator[LoadRequest]:
    """Yield requests until the time is over."""
    while time.monotonic() < end:
        yield next(requests)


async def _play_while_possible(player: Player, dues: Sequence[Due], slo: Slo) -> None:
    playing = asyncio.create_task(player.play_open(dues))
    try:
        while not playing.done() and not _is_lost(player.played, len(dues), slo):
            await asyncio.wait({playing}, timeout=_LOOK_SECONDS)
    finally:
        playing.cancel()
    await asyncio.wait({playing})
    if not playing.cancelled():
        playing.result()


def _is_lost(played: Played, count: int, slo: Slo) -> bool:
    """Return whether so many were late that the others cannot make up for them."""
    late = sum(not slo.is_good(each.latency) for each in played.outcomes)
    return late > (1 - slo.share) * count


def _trial(played: Played, count: int, slo: Slo) -> Trial:
    latencies = [each.latency for each in played.outcomes]
    known = sorted(each for each in latencies if each is not None)
    missing: list[float | None] = [None] * (count - len(latencies))
    place = min(int(slo.share * count), count - 1)
    return Trial(slo.is_kept([*latencies, *missing]), known[place] if place < len(known) else None)


def _throughput(played: Played) -> float:
    ended = [each for each in played.outcomes if each.error is None]
    return len(ended) / played.seconds if ended and played.seconds else 0.0


def _num_slots(engine: Engine, compute: Compute) -> int:
    if engine.pipeline.device.type == "cuda":
        return 1
    return compute.num_threads or engine.config.num_threads or torch.get_num_threads()

"""Running requests through an engine, with live progress; images are saved as they finish."""

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from rich.progress import BarColumn, Progress, TaskID, TimeRemainingColumn

from diffuserve.cli.display.console import Console, text_column
from diffuserve.domain.errors import DiffuserveError, RequestFailed
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import FrameChunk, GenerationResult, StepOutput

_LONG_SECONDS = 5.0  # a shorter run is over before anybody has read how long it takes

OnChunk = Callable[[int, GenerationParams, FrameChunk], None]


@dataclass
class DrawingRun:
    """Results and errors of the requests, by their index in the list. `told` are warnings printed before."""

    results: dict[int, GenerationResult] = field(default_factory=dict)
    errors: dict[int, DiffuserveError] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    interrupted: bool = False

    @property
    def finished(self) -> list[GenerationResult]:
        """Results in the order of their requests."""
        return [self.results[index] for index in sorted(self.results)]


def run_requests(
    engine: Engine,
    requests: Sequence[GenerationParams],
    console: Console,
    on_result: Callable[[int, GenerationResult], GenerationResult],
    on_chunk: OnChunk | None = None,
) -> DrawingRun:
    """Run all requests together. Ctrl-C stops between two steps and keeps finished images.

    `on_result` is called on another thread, so that saving never delays the next step; it returns the
    result with the images that passed, or raises `RequestFailed`. With `on_chunk` the frames of clips go to
    that as they come, on the same thread, and results have none.
    """
    run = DrawingRun(told=tell_ahead(engine, requests, console))
    columns = (
        text_column("{task.description}"),
        BarColumn(),
        text_column("{task.fields[phase]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    saves: dict[int, Future[GenerationResult]] = {}
    with ThreadPoolExecutor(1) as saver, Progress(*columns, console=console) as progress:
        bars = _Bars(engine, requests, progress, is_streaming=on_chunk is not None)
        try:
            while outputs := engine.step():
                for output in outputs:
                    index = bars.show(output)
                    if output.chunk is not None and on_chunk is not None:
                        engine.hold_frames(output.request_id)  # until they are written
                        written = saver.submit(on_chunk, index, bars.params_of(index), output.chunk)
                        written.add_done_callback(partial(_release, engine, output.request_id))
                    if output.result is not None:
                        saves[index] = saver.submit(on_result, index, output.result)
                    elif output.error is not None:
                        run.errors[index] = output.error
        except KeyboardInterrupt:
            run.interrupted = True
    for index, save in saves.items():
        try:
            run.results[index] = save.result()
        except RequestFailed as error:
            run.errors[index] = error
    return run


def tell_ahead(engine: Engine, requests: Sequence[GenerationParams], console: Console) -> frozenset[str]:
    """Say before a run how long it takes, if long, and warn of sizes; return these warnings."""
    resolved = [engine.spec.resolve(params, seed=0) for params in requests]
    warnings = dict.fromkeys(text for params in resolved for text in engine.spec.size_warnings(params))
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow")
    seconds = sum(engine.estimate(params).seconds for params in resolved)
    if seconds >= _LONG_SECONDS:
        console.print(f"this takes about {seconds:,.0f} s", style="dim")
    return frozenset(warnings)


def _release(engine: Engine, request_id: str, _written: Future[None]) -> None:
    engine.release_frames(request_id)


class _Bars:
    """A progress bar for each request: its steps, and then the frames of its clips."""

    def __init__(
        self, engine: Engine, requests: Sequence[GenerationParams], progress: Progress, is_streaming: bool
    ) -> None:
        self._progress = progress
        self._params: list[GenerationParams] = []
        self._frames: dict[str, int] = defaultdict(int)
        self._index: dict[str, int] = {}
        self._bars: dict[str, TaskID] = {}
        for index, params in enumerate(requests):
            resolved = engine.spec.resolve(params, seed=secrets.randbelow(2**32))
            request_id = engine.add(resolved, stream_frames=is_streaming)
            self._params.append(resolved)
            self._index[request_id] = index
            self._bars[request_id] = progress.add_task(_title(params.prompt), total=None, phase="waiting")

    def params_of(self, index: int) -> GenerationParams:
        """Return the parameters of a request with every default filled in."""
        return self._params[index]

    def show(self, output: StepOutput) -> int:
        """Show the progress of a request; return its index in the list."""
        index, request_id = self._index[output.request_id], output.request_id
        num_frames = _num_frames(self._params[index])
        if output.chunk is not None:
            self._frames[request_id] += len(output.chunk.frames)
        phase = f"step {output.step}/{output.num_steps}"
        if output.error is not None:
            phase = "failed"
        elif output.finished:
            phase = "done"
        elif output.step == output.num_steps:
            phase = f"decoding {self._frames[request_id]}/{num_frames} frames" if num_frames else "decoding"
        done = output.step + (num_frames if phase == "done" else self._frames[request_id])
        total = output.num_steps + num_frames
        self._progress.update(self._bars[request_id], completed=done, total=total, phase=phase)
        return index


def _num_frames(params: GenerationParams) -> int:
    """Return the frames of all clips of a request; 0 for images."""
    return 0 if params.num_frames == 1 else (params.num_frames or 0) * params.num_images


def _title(prompt: str, limit: int = 44) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"

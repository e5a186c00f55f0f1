"""Running requests through an engine, with live progress; images are saved as they finish."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from diffuserve.domain.errors import DiffuserveError, RequestFailed
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, StepOutput


@dataclass
class Run:
    """Results and errors of the requests, by their index in the list."""

    results: dict[int, GenerationResult] = field(default_factory=dict)
    errors: dict[int, DiffuserveError] = field(default_factory=dict)
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
) -> Run:
    """Run all requests together. Ctrl-C stops between two steps and keeps finished images.

    `on_result` is called on another thread, so that saving never delays the next step; it returns the
    result with the images that passed, or raises `RequestFailed`.
    """
    run = Run()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[phase]}"))
    saves: dict[int, Future[GenerationResult]] = {}
    with ThreadPoolExecutor(1) as saver, Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bars = _Bars(engine, requests, progress)
        try:
            while outputs := engine.step():
                for output in outputs:
                    index = bars.show(output)
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


class _Bars:
    """A progress bar for each request."""

    def __init__(self, engine: Engine, requests: Sequence[GenerationParams], progress: Progress) -> None:
        self._progress = progress
        self._index: dict[str, int] = {}
        self._bars: dict[str, TaskID] = {}
        for index, params in enumerate(requests):
            request_id = engine.add(params)
            self._index[request_id] = index
            self._bars[request_id] = progress.add_task(_title(params.prompt), total=None, phase="waiting")

    def show(self, output: StepOutput) -> int:
        """Show the progress of a request; return its index in the list."""
        phase = f"step {output.step}/{output.num_steps}"
        if output.error is not None:
            phase = "failed"
        elif output.finished:
            phase = "done"
        elif output.step == output.num_steps:
            phase = "decoding"
        self._progress.update(
            self._bars[output.request_id], completed=output.step, total=output.num_steps, phase=phase
        )
        return self._index[output.request_id]


def _title(prompt: str, limit: int = 44) -> str:
    line = " ".join(prompt.split())
    return escape(line if len(line) <= limit else f"{line[: limit - 1]}…")

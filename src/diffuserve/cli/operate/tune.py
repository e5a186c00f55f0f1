"""`diffuserve tune`: the engine's options for a load and an objective, found by trials."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import date
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.table import Table

from diffuserve.bench.machine_load import MachineLoadMeter
from diffuserve.bench.slo import Slo, parse_slo
from diffuserve.bench.workloads import RequestMix, load_workload
from diffuserve.cli import options
from diffuserve.cli.completion import model_names
from diffuserve.cli.display.console import Console, text_column
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.exit_codes import INTERRUPTED
from diffuserve.domain.errors import InvalidParams
from diffuserve.engine.config import DEFAULT_MODEL
from diffuserve.models.folders.names import full_name
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings
from diffuserve.tuning.kept import (
    DEFAULTS,
    Tuning,
    load_tuning,
    read_tuning_machine,
    save_tuning,
    tuning_path,
)
from diffuserve.tuning.tuner import OnTry, Tuner, TuningPlan, TuningRun

if TYPE_CHECKING:
    from diffuserve.models.pipelines.base import Pipeline
    from diffuserve.tuning.engine_bench import EngineBench

EXAMPLES = """
Examples:

  diffuserve tune --slo "p95<2s"

  diffuserve tune flux-schnell --slo "p95<8s" --workload studio --budget 30m

  diffuserve tune --slo "p99<800ms" --workload our-users.yaml --dtype float32

  diffuserve tune --show

Workers and `serve` take what was found by themselves: --no-tuned, or an option of your own, overrides it.
"""

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LEAST_SECONDS = 5.0


@options.takes_settings("device", "dtype", "quantization", "offload", *options.MODEL_STORE_OPTIONS)
def tune(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=model_names, help="Bundled model, short name, name in the store, folder or hub id."
        ),
    ] = DEFAULT_MODEL,
    *,
    slo: Annotated[
        str | None, typer.Option(help='Objective such as "p95<2s", from a request to its images.')
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Mix of requests: chat-app, studio, batch-night, seed-1360x768, or a YAML file.",
        ),
    ] = "chat-app",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for all trials: 90s, 5m or 1h.")] = "5m",
    random_seed: Annotated[int, typer.Option(help="Makes the same requests and arrivals each time.")] = 0,
    show: Annotated[
        bool, typer.Option("--show", help="Show what was found before, and whether it is used here.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Find the options with which an engine keeps an objective at the highest rate, and keep them.

    Dtypes, threads, tokens and requests of a step are tried: first always busy, then as the cost model
    predicts, and the few best by a load of their own. Leave the machine alone meanwhile. Ctrl-C, as the end
    of the time, keeps the best so far.
    """
    config = settings.model_copy(update={"model": model}).engine_process
    if show:
        _show(config, as_json)
        return
    if slo is None:
        raise InvalidParams("slo", None, 'give the objective that is to be kept, such as --slo "p95<2s"')
    objective, mix, seconds = parse_slo(slo), load_workload(workload), seconds_of(budget)
    is_interrupted, tuning = _tuned(config, objective, mix, workload, seconds, random_seed)
    if tuning is None:
        remedy = "give more with --budget, or an objective that can be kept"
        Console(stderr=True).print(f"in no trial of that time was the objective kept; {remedy}")
    else:
        _print(tuning, as_json)
    raise typer.Exit(INTERRUPTED if is_interrupted else 0)


def _tuned(
    config: EngineProcessConfig, slo: Slo, mix: RequestMix, workload: str, seconds: float, seed: int
) -> tuple[bool, Tuning | None]:
    """Search, and keep the best; return whether that was interrupted, and what was found."""
    from diffuserve.cli.preflight import check_requests, fetched
    from diffuserve.models.machine.torch_environment import prepare_torch

    others = MachineLoadMeter()
    config = fetched(config)
    check_requests(config, ())
    prepare_torch()
    from diffuserve.tuning.engine_bench import EngineBench

    is_told = _tell_of(others)  # now, so that nobody waits for what says little
    run, is_interrupted = TuningRun(), False
    with _progress() as on_try:
        on_try(f"loading {config.model}", seconds)
        bench = EngineBench(lambda dtype: _pipeline(config, dtype), config.engine, mix, slo, seed)
        try:
            computes = bench.computes(_dtypes(config, bench), len(os.sched_getaffinity(0)))
            sizes = bench.sizes()
            plan = TuningPlan(slo=slo, computes=computes, sizes=sizes, seconds=seconds, seed=seed)
            asyncio.run(Tuner(bench, plan, on_try, run=run).search())
        except KeyboardInterrupt:
            is_interrupted = True
        tuning = _kept(config, run, slo, workload, bench)
        bench.close()
    if not is_told:
        _tell_of(others)
    return is_interrupted, tuning


def _tell_of(others: MachineLoadMeter) -> bool:
    """Warn of what else runs on the machine, and return whether it is too much."""
    warning = others.read().warning
    if warning is not None:
        Console(stderr=True).warn(warning)
    return warning is not None


def _pipeline(config: EngineProcessConfig, dtype: str | None) -> "Pipeline":
    from diffuserve.engine_process.model.lone_engine import lone_model

    return lone_model(replace(config, dtype=dtype or config.dtype)).pipeline


def _dtypes(config: EngineProcessConfig, bench: "EngineBench") -> list[str | None]:
    return bench.dtypes() if config.dtype is None else [None]


def _kept(
    config: EngineProcessConfig, run: TuningRun, slo: Slo, workload: str, bench: "EngineBench"
) -> Tuning | None:
    """Keep the best options where workers look for them, with the fit of their trials."""
    best, fit_path = run.best, config.engine.cost_fit_path
    if best is None or fit_path is None:
        return None
    own_fit = fit_path.with_stem(f"{fit_path.stem}-{best.options.dtype}") if best.options.dtype else fit_path
    bench.keep_fit(best.options, own_fit)
    tuning = Tuning(
        model=full_name(config.model),
        slo=str(slo),
        workload=workload,
        options=best.options,
        cost_fit=own_fit.name,
        machine=read_tuning_machine(),
        date=date.today().isoformat(),
        tried=tuple(run.tried),
        is_complete=run.is_complete,
    )
    save_tuning(tuning_path(fit_path), tuning)
    return tuning


def _show(config: EngineProcessConfig, as_json: bool) -> None:
    assert config.engine.cost_fit_path is not None
    path = tuning_path(config.engine.cost_fit_path)
    tuning = load_tuning(path)
    if tuning is None:
        remedy = f'nothing is kept in {path}; run diffuserve tune {config.model} --slo "p95<2s"'
        raise InvalidParams("model", config.model, remedy)
    _print(tuning, as_json)
    if not as_json:
        difference = tuning.other_machine()
        used = f"not used here: {difference}" if difference else "used by workers that start on this machine"
        results().print(f"\nkept on {tuning.date} in {path}; {used}")


def _print(tuning: Tuning, as_json: bool) -> None:
    if as_json:
        echo(orjson.dumps(asdict(tuning), option=orjson.OPT_INDENT_2).decode())
        return
    console = results()
    console.print(_table(tuning))
    console.print(f"\n{reason_of(tuning)}")
    if not tuning.is_complete:
        console.print("The time was over, or Ctrl-C came, before all of it was tried: more may be found.")


def _table(tuning: Tuning) -> Table:
    table = Table(
        *("dtype", "threads", "tokens a step", "requests a step", "predicted/s", "kept/s", "late share"),
        "remark",
        box=None,
        header_style="bold",
    )
    for each in sorted(tuning.tried, key=lambda tried: -(tried.rate or 0.0)):
        chosen = each.options
        table.add_row(
            chosen.dtype or "default",
            str(chosen.num_threads or "all"),
            f"{chosen.token_budget:,}" if chosen.token_budget else "default",
            str(chosen.max_batch_size or "any"),
            _number(each.predicted_rate),
            _number(each.rate),
            _number(each.seconds),
            each.remark,
            style="bold" if chosen == tuning.options else None,
        )
    return table


def reason_of(tuning: Tuning) -> str:
    """Return a sentence that says which options won, and why."""
    found = {each.options: each for each in tuning.tried}
    best, usual = found[tuning.options], found.get(DEFAULTS)
    rate = f"up to {_number(best.rate)} requests a second"
    kept = f"{tuning.options}: {tuning.slo} of {tuning.workload} is kept {rate}"
    if best is usual or usual is None:
        return f"{kept}. Nothing that was tried is better by a twentieth or more."
    if usual.rate is None:
        return f"{kept}; with the defaults at no rate that was tried."
    gain = (best.rate or 0.0) / usual.rate
    return f"{kept}, {gain:.2f} times what the defaults keep ({_number(usual.rate)})."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def seconds_of(text: str) -> float:
    """Return the seconds that `90s`, `5m` or `1h` says. Raise `InvalidParams`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if seconds < _LEAST_SECONDS:
        raise InvalidParams("budget", text, f"must be a time of at least {_LEAST_SECONDS:g} s: 90s, 5m or 1h")
    return seconds


@contextmanager
def _progress() -> Iterator[OnTry]:
    """Show on stderr what is tried, for how long, and how much longer it takes at most."""
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), text_column("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting")
        yield lambda tried, left: progress.update(
            task, description=f"{tried}; {left // 60:.0f}:{left % 60:02.0f} left"
        )

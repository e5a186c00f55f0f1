"""`diffuserve worker`: draws for a control plane elsewhere."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve worker --server http://10.0.0.1:8000 --model black-forest-labs/FLUX.1-schnell

  diffuserve worker --device cuda:1 --label zone=a --label gpu=h200 --price 2.5 --spot
"""


def worker(  # noqa: PLR0913 (a command has as many arguments as options)
    server: options.Server = None,
    model: options.Model = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    key: options.Key = None,
    name: Annotated[str, typer.Option(help="What people call this worker; by default the host's name.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Shown to operators; may be repeated.")
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Per hour, in any one currency.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="The machine may vanish at short notice.")] = False,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on this port.")] = None,
    heartbeat_seconds: Annotated[
        float | None, typer.Option(help="Time between heartbeats; by default the server's.")
    ] = None,
    drain_seconds: options.DrainSeconds = None,
    stall_seconds: Annotated[
        float | None, typer.Option(help="Time without a step after which the engine is started anew.")
    ] = None,
    max_jobs: Annotated[int | None, typer.Option(help="Jobs held at a time.")] = None,
    engine_restarts: Annotated[
        int | None,
        typer.Option(min=0, help="How often in a row a dead engine is started again; by default always."),
    ] = None,
    parent_fd: Annotated[int | None, typer.Option(hidden=True, help="End when this pipe does.")] = None,
    engine_command: options.EngineCommand = None,
) -> None:
    """Draw pictures for a control plane, until it is stopped.

    SIGTERM or Ctrl-C: no new jobs, finish what can be finished in time, hand back the rest.
    """
    from diffuserve.cli.logs import log_to_stderr
    from diffuserve.cli.wiring.worker import WorkerOptions, run

    settings = Settings.with_options(
        server=server,
        model=model,
        device=device,
        dtype=dtype,
        api_key=key,
        drain_seconds=drain_seconds,
        stall_seconds=stall_seconds,
        max_jobs=max_jobs,
    )
    if parent_fd is not None:
        settings = settings.model_copy(update={"api_key": read_key(parent_fd)})
    log_to_stderr()
    given = WorkerOptions(
        name=name,
        labels=labels_of(label or ()),
        price_per_hour=price,
        is_spot=spot,
        metrics_port=metrics_port,
        heartbeat_seconds=heartbeat_seconds,
        engine_restarts=engine_restarts,
        parent_fd=parent_fd,
        engine_command=engine_command,
    )
    raise typer.Exit(run(settings, given))


def read_key(parent_fd: int) -> str | None:
    """The key that the server wrote into the pipe; the pipe stays open as long as the server lives."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(parent_fd, 1)):
        line += byte
    return line.decode().strip() or None


def labels_of(words: Sequence[str]) -> dict[str, str]:
    """Raises `InvalidParams` for what is not KEY=VALUE."""
    labels = {}
    for word in words:
        key, found, value = word.partition("=")
        if not (key and found):
            raise InvalidParams("label", word, "must be KEY=VALUE, for example --label zone=a")
        labels[key] = value
    return labels

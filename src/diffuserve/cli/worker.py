"""`diffuserve worker`: draws for a control plane elsewhere."""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings
from diffuserve.worker.config import Nodes

EXAMPLES = """
Examples:

  diffuserve worker --server http://10.0.0.1:8000 --model black-forest-labs/FLUX.1-schnell

  diffuserve worker --replicas 8

  diffuserve worker --gpus 8

  diffuserve worker --gpus 8 --nnodes 2 --node-rank 1 --node-endpoint 10.0.0.7:29500

  diffuserve worker --device cuda:1 --label zone=a --label gpu=h200 --price 2.5 --spot
"""


@options.takes_settings("server", "api_key", *options.WORKER_OPTIONS)
def worker(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    name: Annotated[str, typer.Option(help="Name of this worker; by default the host's name.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Shown to operators; may be repeated.")
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Per hour, in any one currency.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="The machine may vanish at short notice.")] = False,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on this port.")] = None,
    heartbeat_seconds: Annotated[
        float | None, typer.Option(help="Time between heartbeats; by default the server's.")
    ] = None,
    replicas: Annotated[
        int, typer.Option(min=1, help="Workers of one GPU each to start instead, on cuda:0, cuda:1, …")
    ] = 1,
    nnodes: Annotated[int, typer.Option(min=1, help="Machines that are one worker.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of them this is; 0 has the agent.")] = 0,
    node_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the machine of rank 0 meets the others.")
    ] = None,
    parent_fd: Annotated[int | None, typer.Option(hidden=True, help="End when this pipe does.")] = None,
    engine_command: options.EngineCommand = None,
) -> None:
    """Draw images for a control plane, until it is stopped.

    SIGTERM or Ctrl-C: no new jobs, finish what can be finished in time, hand back the rest.
    """
    from diffuserve.cli.logs import log_to_stderr
    from diffuserve.cli.wiring.worker import checked, replica, run, run_replicas

    log_to_stderr()
    start = settings.worker
    config = dataclasses.replace(
        start,
        engine_process=checked(start.engine_process),
        api_key=start.api_key if parent_fd is None else read_key(parent_fd),
        name=name,
        labels=labels_of(label or ()),
        price_per_hour=price,
        is_spot=spot,
        metrics_port=metrics_port,
        heartbeat_seconds=heartbeat_seconds,
        nodes=nodes_of(nnodes, node_rank, node_endpoint),
        engine_command=tuple(shlex.split(engine_command or "")),
        parent_fd=parent_fd,
    )
    if replicas == 1:
        raise typer.Exit(run(config))
    if config.has_ranks:
        raise InvalidParams("replicas", replicas, "they have one GPU each; leave out --gpus and --nnodes")
    raise typer.Exit(run_replicas([replica(config, settings, number) for number in range(replicas)]))


def nodes_of(count: int, rank: int, endpoint: str | None) -> Nodes | None:
    """Return the machines of one worker; `None` for a single one. Raise `InvalidParams`."""
    if count == 1:
        return None
    if rank >= count:
        raise InvalidParams("node_rank", rank, f"{count} nodes are numbered 0 to {count - 1}")
    host, _, port = (endpoint or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidParams("node_endpoint", endpoint, "several nodes meet at --node-endpoint HOST:PORT")
    return Nodes(count, rank, host, int(port))


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

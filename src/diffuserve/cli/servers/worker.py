"""`diffuserve worker`: a worker of a control plane on another machine."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.panels import FLEET, MANY_GPUS, RELIABILITY
from diffuserve.domain.backend_urls import LAST_PORT
from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import private_umask
from diffuserve.protocol.nodes import Nodes, private_address, read_node_secret
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve worker --server http://10.0.0.1:8000 --model black-forest-labs/FLUX.1-schnell

  diffuserve worker --model flux-schnell --model sdxl --resident-bytes 40000000000

  diffuserve worker --replicas 8

  diffuserve worker --gpus 8

  diffuserve worker --gpus 8 --nnodes 2 --node-rank 1 --node-endpoint 10.0.0.7:29500 --node-secret-file secret

  diffuserve worker --device cuda:1 --label zone=a --label gpu=h200 --price 2.5 --spot auto
"""


@options.takes_settings("server", "api_key", "api_key_file", *options.WORKER_SETTINGS)
def worker(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    name: Annotated[
        str,
        typer.Option(
            help="Name of this worker. [default: the host's name]", rich_help_panel=FLEET, show_default=False
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Label shown to operators; may be repeated. [default: none]",
            rich_help_panel=FLEET,
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Price per hour, in a currency of your choice. [default: none]",
            rich_help_panel=FLEET,
        ),
    ] = None,
    leave_when_idle: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="End after so long without a job, if the model has more workers than it should. "
            "[default: stay]",
            rich_help_panel=FLEET,
        ),
    ] = None,
    leave_at_least: Annotated[
        int,
        typer.Option(
            min=0,
            help="Workers of the model that stay, however idle they are. [default: none]",
            rich_help_panel=FLEET,
            show_default=False,
        ),
    ] = 0,
    pod_deletion_cost: Annotated[
        bool,
        typer.Option(
            "--pod-deletion-cost",
            help="In Kubernetes, annotate the worker's pod with what its end would cost. [default: off]",
            rich_help_panel=FLEET,
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve Prometheus metrics on this port. [default: none]", rich_help_panel=FLEET),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
            help="Address of the metrics, which ask for no key; 0.0.0.0 is every one.", rich_help_panel=FLEET
        ),
    ] = "127.0.0.1",
    heartbeat_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds between heartbeats. [default: the control plane's]", rich_help_panel=RELIABILITY
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            help="Workers of one GPU each to start, on cuda:0, cuda:1, …",
            rich_help_panel=MANY_GPUS,
        ),
    ] = 1,
    nnodes: Annotated[
        int, typer.Option(min=1, help="Machines that form one worker.", rich_help_panel=MANY_GPUS)
    ] = 1,
    node_rank: Annotated[
        int,
        typer.Option(min=0, help="Rank of this machine; rank 0 has the agent.", rich_help_panel=MANY_GPUS),
    ] = 0,
    node_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Private address of rank 0 at which the machines meet. [default: none]",
            rich_help_panel=MANY_GPUS,
        ),
    ] = None,
    node_secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with what proves that a machine is one of them, the same on each. [default: none]",
            rich_help_panel=MANY_GPUS,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check model, device, server and key, and end without loading anything. [default: off]",
            rich_help_panel=RELIABILITY,
        ),
    ] = False,
    parent_fd: Annotated[int | None, typer.Option(hidden=True, help="End when this pipe is closed.")] = None,
    engine_command: options.EngineCommand = None,
) -> None:
    """Generate images for a control plane, until it is stopped.

    SIGTERM or Ctrl-C drains it: it claims no new jobs, finishes those that it can in time, and releases
    the rest.
    """
    start = settings.worker
    if start.further and nnodes > 1:
        raise InvalidParams("model", start.further[0].model, "a worker of several machines serves one model")
    if engine_command is None and parent_fd is None:  # `serve` has checked what it gives its worker
        from diffuserve.cli.preflight import check_worker

        check_worker(start.engine_processes, start.gpus, replicas, nnodes)

    from diffuserve.agent.main import reach_server
    from diffuserve.telemetry.logs import configure_logs
    from diffuserve.wiring.worker import checked, replica, run, run_replicas

    configure_logs(settings.logs)
    config = dataclasses.replace(
        start,
        engine_process=checked(start.engine_process),
        further=tuple(map(checked, start.further)),
        api_key=start.api_key if parent_fd is None else None,
        api_key_file=start.api_key_file if parent_fd is None else None,
        name=name,
        labels=labels_of(label or ()),
        price_per_hour=price,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        idle_seconds=leave_when_idle,
        idle_least=leave_at_least,
        tells_deletion_cost=pod_deletion_cost,
        heartbeat_seconds=heartbeat_seconds,
        nodes=nodes_of(nnodes, node_rank, node_endpoint, node_secret_file),
        engine_command=tuple(shlex.split(engine_command or "")),
        parent_fd=parent_fd,
    )
    if replicas > 1 and config.has_ranks:
        raise InvalidParams("replicas", replicas, "replicas have one GPU each; leave out --gpus and --nnodes")
    if check:
        reach_server(config)
        return
    with private_umask():
        code = (
            run(config)
            if replicas == 1
            else run_replicas([replica(config, settings, number) for number in range(replicas)])
        )
    raise typer.Exit(code)


def nodes_of(count: int, rank: int, endpoint: str | None, secret_file: Path | None) -> Nodes | None:
    """Return the machines of one worker; `None` for a single one. Raise `InvalidParams`."""
    if count == 1:
        return None
    if rank >= count:
        raise InvalidParams("node_rank", rank, f"{count} nodes are numbered 0 to {count - 1}")
    host, _, port = (endpoint or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise InvalidParams("node_endpoint", endpoint, "several nodes meet at --node-endpoint HOST:PORT")
    private_address(host)  # the launcher looks again at each start
    if secret_file is None:
        remedy = "several nodes prove by --node-secret-file FILE that they belong together"
        raise InvalidParams("node_secret_file", None, remedy)
    read_node_secret(secret_file)
    return Nodes(count, rank, host, int(port), secret_file.absolute())


def labels_of(words: Sequence[str]) -> dict[str, str]:
    """Parse labels. Raise `InvalidParams` if a word is not KEY=VALUE."""
    labels = {}
    for word in words:
        key, found, value = word.partition("=")
        if not (key and found):
            raise InvalidParams("label", word, "must be KEY=VALUE, for example --label zone=a")
        labels[key] = value
    return labels

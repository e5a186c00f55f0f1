"""The engine process of a worker. It connects to its agent before anything heavy is imported.

Importing torch takes seconds, and from its first moment on this process must notice that its agent
is gone. Where the launcher of ranks has started several of them, only rank 0 is connected to the agent.
"""

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from diffuserve.domain.errors import DiffuserveError
from diffuserve.engine_process.agent_link import AgentLink, end_with_agent_alone
from diffuserve.engine_process.model.load_reporter import LoadReporter
from diffuserve.engine_process.model.model_description import describe
from diffuserve.engine_process.model.prepared_model import read_ahead
from diffuserve.engine_process.model.stored_model import logged, with_stored_model
from diffuserve.models.machine.torch_environment import prepare_torch
from diffuserve.modelstore.store import OnFetch, is_stored
from diffuserve.parallel.rank_place import RankPlace, own_place
from diffuserve.private_files import private_umask
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineHeartbeat
from diffuserve.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from diffuserve.engine.loading import LoadedModel
    from diffuserve.engine_process.engine_host import EngineHost
    from diffuserve.engine_process.model.engine_peers import EnginePeers
    from diffuserve.modelstore.manifest import Manifest

_HEARTBEAT_SECONDS = 1.0

OnHost: TypeAlias = "Callable[[EngineHost], None]"
"""Receives the host that handles the agent's messages from then on."""
RunHost: TypeAlias = "Callable[[EngineProcessConfig, AgentLink, OnHost], None]"


def main() -> None:
    arguments = parse_arguments()
    end_with_agent_alone()
    prepare_torch()
    config = EngineProcessConfig.from_json(arguments.config)
    configure_logs(config.logs)
    run_to_exit(partial(_run, config, own_place(), arguments.socket))


def run_to_exit(run: Callable[[], None]) -> NoReturn:
    """Run what this process is there for, then end it: with code 1 if that failed, which is printed."""
    try:
        with private_umask():
            run()
    except DiffuserveError as error:
        print(f"error: {error}", file=sys.stderr)
        _exit(1)
    except BaseException:
        traceback.print_exc()
        _exit(1)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """Exit at once: threads of libraries may still run, and would abort a process that ends in order."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(config: EngineProcessConfig, place: RankPlace | None, socket: Path) -> None:
    if place is None:
        serve_agent(config, socket, partial(run_engine, None))
    elif place.rank == 0:
        serve_agent(config, socket, _lead_ranks)
    else:
        from diffuserve.engine_process.ranks.rank_process import follow

        follow(with_stored_model(config))


def _fetching(link: AgentLink, manifest: "Manifest") -> Callable[[int], None]:
    """Report the progress of a download to the agent, and in the log."""
    reporter, log = LoadReporter(link), logged(manifest)
    reporter.begin("fetching", manifest.num_bytes)

    def report(num_bytes: int) -> None:
        reporter.add(num_bytes)
        log(num_bytes)

    return report


def serve_agent(config: EngineProcessConfig, socket: Path, run: RunHost) -> None:
    """Announce the model to the agent that listens at `socket`, then `run` a host until it is stopped."""
    link = AgentLink(socket)
    host: EngineHost | None = None  # set once the model is loaded; the agent sends nothing before that

    def on_host(loaded: "EngineHost") -> None:
        nonlocal host
        host = loaded

    peers: EnginePeers | None = None
    loading = EngineHeartbeat(num_moves=0, num_unfinished=0)

    def heartbeat() -> EngineHeartbeat:
        beat = host.heartbeat() if host else loading
        if peers is not None:
            peers.limit(is_busy=beat.num_unfinished > 0)
        return beat

    link.listen(
        lambda message: host.handle(message) if host else None,
        lambda message: peers.told(message) if peers else None,
    )
    link.send_every(_HEARTBEAT_SECONDS, heartbeat)
    try:
        announced = describe(config)  # before anything large is fetched or imported
        link.send(announced)  # jobs are accepted from here on
        config = replace(config, model=announced.reference)
        peers = join_peers(config, link)
        config = fetch_model(config, partial(_fetching, link), peers)
        run(config, link, on_host)
    except DiffuserveError as error:
        link.refuse(str(error))


def join_peers(config: EngineProcessConfig, link: AgentLink) -> "EnginePeers | None":
    """Listen for peers of a model of the store, if that is asked for. Raise `InvalidParams`."""
    if config.peers is None or own_place() is not None or not is_stored(config.model, config.stored):
        return None
    from diffuserve.engine_process.model.engine_peers import EnginePeers  # few workers have peers

    return EnginePeers(config.peers, config, link)


def fetch_model(
    config: EngineProcessConfig, on_fetch: OnFetch, peers: "EnginePeers | None"
) -> EngineProcessConfig:
    """Return the configuration with the folder of its model, which peers get too. Raise as the store does."""
    if peers is None:
        return with_stored_model(config, on_fetch)
    fetched = with_stored_model(config, on_fetch, peers.together)
    peers.have(config.model)
    return fetched


def run_engine(
    model: "LoadedModel | None", config: EngineProcessConfig, link: AgentLink, on_host: OnHost
) -> None:
    """Run the engine of one device; `model` is what was loaded for it before."""
    if model is None:
        read_ahead(config)
    with _without_collections():
        from diffuserve.engine_process.engine_host import load_host

        host = load_host(config, link, model)
    on_host(host)
    host.run()


def _lead_ranks(config: EngineProcessConfig, link: AgentLink, on_host: OnHost) -> None:
    with _without_collections():
        from diffuserve.engine_process.ranks.rank_process import lead

    lead(config, link, on_host)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage within the block, which creates what stays: looking through it takes long."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The engine process of a worker; started by its agent.")
    parser.add_argument("--config", required=True, help="JSON of EngineProcessConfig")
    parser.add_argument("--socket", type=Path, help="Unix socket of the agent; only rank 0 needs it")
    return parser.parse_args()


if __name__ == "__main__":
    main()

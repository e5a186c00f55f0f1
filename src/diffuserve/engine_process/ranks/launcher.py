"""The process that starts the ranks of a worker of several GPUs, on one machine, and ends them together.

python -m diffuserve.engine_process.ranks.launcher --ranks=2 -- -m diffuserve.engine_process.start.main …

On one machine the ranks meet through connections that they inherit, and listen on loopback alone. The first
of several machines listens at an address of a private network, for ranks that know the secret.
"""

import argparse
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from diffuserve.domain.errors import InvalidParams
from diffuserve.engine_process.agent_link import die_with_parent
from diffuserve.parallel.rank_place import RankPlace, inherited
from diffuserve.parallel.store_server import StoreServer
from diffuserve.protocol.nodes import private_address, read_node_secret
from diffuserve.stop_signals import ignore_stop_signals

_SECRET_BYTES = 32
_LEAVE_SECONDS = 30.0
"""Seconds that ranks may take to end after the first of them has ended well."""
_BACKLOG = 64
_LOOPBACK = "127.0.0.1"


def main() -> None:
    """Start the ranks, and end with the first that fails; stop signals are the agent's."""
    die_with_parent()
    ignore_stop_signals()
    mark = sys.argv.index("--")
    options, program = parse_options(sys.argv[1:mark]), (sys.executable, *sys.argv[mark + 1 :])
    try:
        group = group_of(options)
    except InvalidParams as error:
        sys.exit(f"error: {error}")
    sys.exit(group.run(program))


@dataclass(frozen=True)
class Group:
    """The part of a group of ranks that this machine runs.

    `listener` is the store's on the first of several machines, and `store` where those of others find it.
    """

    num_ranks: int
    num_nodes: int
    node: int
    secret: bytes
    environment: Mapping[str, str]
    store: str = ""
    listener: socket.socket | None = None

    def run(self, program: Sequence[str]) -> int:
        """Run a program as each rank until all have ended; return the first exit code that is not 0."""
        if self.node > 0:
            ranks = [self._start(program, rank, self.store) for rank in range(self.num_ranks)]
            return wait_for_all(ranks)
        pairs = [socket.socketpair() for _ in range(self.num_ranks)]
        ranks = [
            self._start(program, rank, inherited(theirs), theirs) for rank, (_, theirs) in enumerate(pairs)
        ]
        for _, theirs in pairs:
            theirs.close()
        # After the ranks have started: what runs in a fork before its program must have one thread.
        StoreServer(self.secret, [ours for ours, _ in pairs], self.listener).start()
        return wait_for_all(ranks)

    def _start(
        self, program: Sequence[str], rank_here: int, store: str, connection: socket.socket | None = None
    ) -> subprocess.Popen[bytes]:
        rank = self.node * self.num_ranks + rank_here
        size = self.num_nodes * self.num_ranks
        place = RankPlace(rank, size, rank_here, self.num_ranks, store, self.secret)
        return subprocess.Popen(  # noqa: S603 (the agent gives the program)
            program,
            env={**self.environment, **place.environment},
            pass_fds=() if connection is None else (connection.fileno(),),
            preexec_fn=die_with_parent,
        )


def wait_for_all(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended, and kill those that are left once one has failed. Return its exit code."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for rank in ranks:
        threading.Thread(target=lambda rank=rank: ended.put(rank.wait()), daemon=True).start()
    try:
        code = ended.get()
        for _ in ranks[1:]:
            if code != 0:
                break
            code = ended.get(timeout=_LEAVE_SECONDS)
    except queue.Empty:
        code = 1
    for rank in ranks:
        rank.kill()
        rank.wait()
    return code if code >= 0 else 128 - code  # a shell's exit code for a signal


def group_of(options: argparse.Namespace) -> Group:
    """Return this machine's part of the group; its store listens if others join. Raise `InvalidParams`."""
    shape = (options.ranks, options.nodes, options.node_rank)
    given = {"OMP_NUM_THREADS": "1", **os.environ}  # noqa: TID251 (it goes to the ranks, and is not read)
    if options.nodes == 1:
        return Group(*shape, secrets.token_bytes(_SECRET_BYTES), {**given, **_on_interface(_LOOPBACK)})
    secret, host = read_node_secret(options.secret_file), private_address(options.host)
    listener = _listen(host, options.port) if options.node_rank == 0 else None
    environment = {**_on_interface(host if listener else _address_toward(host)), **given}
    return Group(*shape, secret, environment, f"{host}:{options.port}", listener)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
    except OSError as error:
        remedy = f"cannot listen there: {error.strerror}; give an address of the machine of --node-rank 0"
        raise InvalidParams("node_endpoint", f"{host}:{port}", remedy) from error


def _address_toward(host: str) -> str:
    """Return this machine's address on its way to a host."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # on a datagram socket this sends nothing
        return str(probe.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _on_interface(address: str) -> Mapping[str, str]:
    """Return what has Gloo and NCCL listen at the interface that has this address, and at no other."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in found):
            return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    raise InvalidParams("node_endpoint", address, "no network interface of this machine has this address")


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Starts the ranks of a worker; started by its agent.")
    parser.add_argument("--ranks", type=int, required=True, help="on this machine")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--host", help="where the store of node 0 listens")
    parser.add_argument("--port", type=int)
    parser.add_argument("--secret-file", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

"""Machines that form one worker: their meeting address, and the secret that authenticates them."""

import socket
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.workers.peers import PRIVATE_NETWORKS, is_private
from diffuserve.private_files import check_not_public

_MIN_SECRET = 32


@dataclass(frozen=True)
class Nodes:
    """Machines that form one worker: their number, the rank of this one, and the address of rank 0.

    `secret_file` holds the secret, the same on each machine, by which ranks prove that they belong to it.
    """

    count: int
    rank: int
    host: str
    port: int
    secret_file: Path

    @property
    def launcher_options(self) -> tuple[str, ...]:
        """Arguments of the launcher. Ranks follow the nodes' own, so that rank 0 runs beside the agent."""
        return (
            f"--nodes={self.count}",
            f"--node-rank={self.rank}",
            f"--host={self.host}",
            f"--port={self.port}",
            f"--secret-file={self.secret_file}",
        )


def private_address(host: str) -> str:
    """Return the address of a host in a private network. Raise `InvalidParams` for any other host."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidParams("node_endpoint", host, f"cannot be resolved: {error}") from error
    addresses = [str(place[0]) for *_, place in found]
    if not all(map(is_private, addresses)):
        raise InvalidParams(
            "node_endpoint",
            host,
            f"is {addresses[0]}, which is in none of {', '.join(PRIVATE_NETWORKS)}: what ranks exchange is "
            "not encrypted; give an address of a private network that only the machines of this worker reach",
        )
    return addresses[0]


def read_node_secret(path: Path) -> bytes:
    """Return the secret in the file. Raise `InvalidParams` if it is missing, short, or readable by others."""
    try:
        check_not_public(path, "node_secret_file")
        secret = path.read_bytes().strip()
    except OSError as error:
        raise InvalidParams("node_secret_file", str(path), f"cannot be read: {error}") from error
    if len(secret) < _MIN_SECRET:
        raise InvalidParams(
            "node_secret_file",
            str(path),
            f"holds {len(secret)} characters, and at least {_MIN_SECRET} are needed; make one by "
            f"`(umask 077; openssl rand -hex 32 > {path})`, and copy it to each machine of the worker",
        )
    return secret

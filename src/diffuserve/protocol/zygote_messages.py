"""Messages between the agent and its zygote, from which engine processes are forked."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class ZygoteReady:
    """The zygote has imported what an engine needs, and can be forked from now on."""


@dataclass(frozen=True, kw_only=True)
class ForkEngine:
    """Fork an engine process of this configuration, which connects to this Unix socket."""

    config: str
    socket: str


@dataclass(frozen=True, kw_only=True)
class EngineForked:
    """The zygote has forked the requested engine."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class EngineEnded:
    """A forked engine has ended; `code` is negative if a signal ended it."""

    pid: int
    code: int


FromZygote: TypeAlias = ZygoteReady | EngineForked | EngineEnded

"""What one worker is told."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Times in seconds.

    `heartbeat_seconds`: `None` takes what the control plane says. `stall_seconds`: an engine that is
    occupied and moves nothing for so long is killed; `silence_seconds`: one that shows no sign of
    life. `max_jobs`: jobs inside the engine. `memory_fraction`: above it no job is claimed.
    `engine_restarts`: how often in a row a dead engine is started again; `None` for ever.
    `engine_command` takes the place of the engine process. `parent_fd`: a pipe whose end means that
    the parent is dead.
    """

    server: str
    model: str = "tiny-flux"
    device: str | None = None
    dtype: str | None = None
    api_key: str | None = None
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | None = None
    is_spot: bool = False
    heartbeat_seconds: float | None = None
    stall_seconds: float = 60.0
    silence_seconds: float = 10.0
    drain_seconds: float = 30.0
    max_jobs: int = 32
    memory_fraction: float = 0.95
    engine_restarts: int | None = None
    metrics_port: int | None = None
    engine_command: tuple[str, ...] = ()
    cost_fit_path: Path | None = None
    parent_fd: int | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What starts the engine process; the socket is added to it."""
        if self.engine_command:
            return self.engine_command
        options = {"--device": self.device, "--dtype": self.dtype, "--cost-fit": self.cost_fit_path}
        given = [str(part) for pair in options.items() if pair[1] is not None for part in pair]
        module = "diffuserve.worker.engine_process"
        return (sys.executable, "-m", module, "--model", self.model, *given)

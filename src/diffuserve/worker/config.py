"""What one worker is told."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Nodes:
    """Machines that are one worker: how many, which of them this is, and where the first one listens."""

    count: int
    rank: int
    host: str
    port: int

    @property
    def options(self) -> tuple[str, ...]:
        """Of torchrun. Ranks are dealt by the nodes' own: rank 0 must be where the agent is."""
        return (
            f"--nnodes={self.count}",
            f"--node-rank={self.rank}",
            f"--master-addr={self.host}",
            f"--master-port={self.port}",
        )


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """What is done to images before they leave the engine process.

    `image_filter` and `image_rules` as `open_image_filter` takes them; without `has_metadata` files
    carry nothing but the image.
    """

    image_filter: str = "opennsfw"
    image_rules: Mapping[str, Any] = field(default_factory=dict)
    has_metadata: bool = True

    @property
    def rules_text(self) -> str | None:
        """JSON for the engine process; `None` for the filter's own."""
        return json.dumps(dict(self.image_rules)) if self.image_rules else None


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Times in seconds.

    `heartbeat_seconds`: `None` takes what the control plane says. `stall_seconds`: an engine that is
    occupied and moves nothing for so long is killed; `silence_seconds`: one that shows no sign of
    life. `max_jobs`: jobs inside the engine. `memory_fraction`: above it no job is claimed.
    `engine_restarts`: how often in a row a dead engine is started again; `None` for ever.
    `gpus` above 1, or several `nodes`: torchrun starts the engine once for each GPU, and `parallel` says
    how they share a request; a collective that takes longer than `collective_seconds` ends the group.
    `engine_command` takes the place of the engine process. `parent_fd`: a pipe whose end means that the
    parent is dead.
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
    gpus: int = 1
    nodes: Nodes | None = None
    parallel: str | None = None
    collective_seconds: float = 120.0
    images: ImageOptions = ImageOptions()
    engine_command: tuple[str, ...] = ()
    cost_fit_path: Path | None = None
    parent_fd: int | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What starts the engine process; the socket is added to it."""
        if self.engine_command:
            return self.engine_command
        options = {
            "--device": self.device,
            "--dtype": self.dtype,
            "--cost-fit": self.cost_fit_path,
            "--parallel": self.parallel,
            "--collective-seconds": self.collective_seconds if self.has_ranks else None,
            "--image-filter": self.images.image_filter,
            "--image-rules": self.images.rules_text,
        }
        given = [str(part) for pair in options.items() if pair[1] is not None for part in pair]
        given += [] if self.images.has_metadata else ["--no-metadata"]
        launcher = (sys.executable, "-m", *(self._torchrun if self.has_ranks else ()))
        return (*launcher, "diffuserve.worker.engine_process", "--model", self.model, *given)

    @property
    def has_ranks(self) -> bool:
        return self.gpus > 1 or self.nodes is not None

    @property
    def _torchrun(self) -> tuple[str, ...]:
        """It restarts nothing: what is left of a broken group is started anew by whoever started it."""
        where = ("--standalone",) if self.nodes is None else self.nodes.options
        return ("torch.distributed.run", *where, f"--nproc-per-node={self.gpus}", "--max-restarts=0", "-m")

"""Configuration of a worker: what its agent needs, and how it starts engine processes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from diffuserve.agent.spot.base import Spot
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.workers.worker import WorkerRole
from diffuserve.options import option
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.nodes import Nodes
from diffuserve.telemetry.tracing_config import TracingConfig

_DECODES_AT_ONCE = 2


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Configuration of a worker. Times are in seconds.

    `api_key_file` holds the API key in place of `api_key`, and is read again when the key is refused.
    `further` are the engine processes of the models that the worker serves beside that of `engine_process`.
    `heartbeat_seconds`: `None` takes the interval that the control plane asks for.
    `idle_seconds` without a job may end the worker, but at least `idle_least` of its model stay; with `None`
    it stays.
    `tells_deletion_cost`: in a pod of Kubernetes, annotate it with what its end would cost.
    `gpus` above 1, or several `nodes`: a launcher starts the engine process once per GPU.
    `engine_command` replaces the engine process, for tests; `{model}` in it stands for the model's name.
    `parent_fd` is a pipe from the server that started the worker: it sends the API key, and the worker ends
    when it is closed. `shares_machine` says that other workers of this command run beside it, and
    `visible_device` is then the only GPU that it sees, by the CUDA driver's name.
    """

    server: str
    engine_process: EngineProcessConfig = EngineProcessConfig()
    tracing: TracingConfig = TracingConfig()
    further: tuple[EngineProcessConfig, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    api_key_file: Path | None = None
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | None = None
    heartbeat_seconds: float | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    idle_seconds: float | None = None
    idle_least: int = 0
    tells_deletion_cost: bool = False
    nodes: Nodes | None = None
    engine_command: tuple[str, ...] = ()
    parent_fd: int | None = None
    shares_machine: bool = False
    visible_device: str | None = None
    gpus: int = option(1, "GPUs that generate each image together.", ge=1)
    role: WorkerRole = option(
        WorkerRole.ALL,
        "Part of a job that a worker does: all, denoise up to finished latents, or decode from them.",
    )
    max_jobs: int = option(32, "Jobs inside the engine at a time.", ge=1)
    memory_fraction: float = option(
        0.95,
        "Share of the memory limit, which is the GPU's, or the container's or the machine's, above which a "
        "worker claims no job.",
        gt=0,
        le=1,
    )
    stall_seconds: float = option(
        60.0,
        "Seconds without progress after which a busy engine is killed and restarted; ten times its longest "
        "step, or what its present one should take, if that is more.",
        gt=0,
    )
    silence_seconds: float = option(
        10.0, "Seconds without a heartbeat after which an engine is killed and restarted.", gt=0
    )
    resident_bytes: int | None = option(
        None,
        "Bytes of weights that several models may have in memory together, of which the least recently used "
        "are unloaded; by default 0.6 of the device's memory.",
        gt=0,
    )
    engine_restarts: int | None = option(
        None,
        "Restarts in a row before a worker gives up on its engine; with 0 it ends within a second of its "
        "engine, for supervisors that restart it; by default no limit.",
        ge=0,
    )
    zygote: bool = option(
        True,
        "Keep a process ready from which a lost engine starts by fork within a second, in some 300 MB; "
        "of a worker of one device, on Linux.",
    )
    model_orders: bool = option(
        False,
        "Take operators' orders, from the page and the API, to fetch and load other models: those that ship, "
        "and known names whose versions are pinned.",
    )
    drain_seconds: float = option(30.0, "Seconds that a stopping worker may take to finish its jobs.", ge=0)
    spot: Spot = option(
        Spot.NONE,
        "Who gives notice that the machine is taken away: aws, gcp, azure, auto to find out, other (nobody).",
    )
    notice_seconds: float = option(25.0, "Seconds after such a notice in which all jobs are released.", ge=15)
    checkpoint_seconds: float = option(
        30.0,
        "Seconds of work that a lost worker may cost a long job, which is kept so often; 0: never.",
        ge=0,
    )

    @property
    def engine_processes(self) -> tuple[EngineProcessConfig, ...]:
        """Configurations of the engine processes, one for each model."""
        return (self.engine_process, *self.further)

    @property
    def own_process(self) -> EngineProcessConfig:
        """Configuration of the engine process of the first model."""
        return self.own_processes[0]

    @property
    def own_processes(self) -> tuple[EngineProcessConfig, ...]:
        """Configurations of the engine processes by model, with the parts that this worker's role needs."""
        denoises = self.role.denoises
        parts = Parts(encoding=denoises, denoising=denoises, decoding=self.role.decodes)
        return tuple(replace(process, parts=parts) for process in self.engine_processes)

    @property
    def takes_orders(self) -> bool:
        """True if the worker may get other models: one of a single process, which does all of a job."""
        return self.model_orders and not self.has_ranks and self.role is WorkerRole.ALL

    @property
    def total_jobs(self) -> int:
        """Jobs inside the engine at a time. A worker that decodes has one in work, and the next one."""
        return min(self.max_jobs, _DECODES_AT_ONCE) if self.role is WorkerRole.DECODE else self.max_jobs

    @property
    def has_neighbors(self) -> bool:
        """True if other workers of its command, or its server, run on the same machine."""
        return self.shares_machine or self.parent_fd is not None

    @property
    def command(self) -> tuple[str, ...]:
        """Command that starts the engine process of the first model."""
        return self.command_of(self.own_process)

    def command_of(self, process: EngineProcessConfig) -> tuple[str, ...]:
        """Return the command that starts an engine process; the agent appends its socket."""
        if self.engine_command:
            return tuple(word.replace("{model}", process.model) for word in self.engine_command)
        launcher = self._launcher if self.has_ranks else ()
        module = ("diffuserve.engine_process.start.main", "--config", process.to_json())
        return (sys.executable, "-m", *launcher, *module)

    @property
    def has_zygote(self) -> bool:
        """True if lost engines start by fork: ranks cannot, and only Linux tells the end of one."""
        return self.zygote and not self.engine_command and not self.has_ranks and sys.platform == "linux"

    @property
    def has_ranks(self) -> bool:
        """True if a launcher starts the engine process, once per GPU."""
        return self.gpus > 1 or self.nodes is not None

    @property
    def _launcher(self) -> tuple[str, ...]:
        """Words that run the launcher, which restarts nothing: the agent starts a broken group anew."""
        where = () if self.nodes is None else self.nodes.launcher_options
        return ("diffuserve.engine_process.ranks.launcher", f"--ranks={self.gpus}", *where, "--", "-m")

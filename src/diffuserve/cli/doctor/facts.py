"""Facts of a machine and a server, as `diffuserve doctor` gathers them; `None` is what does not apply."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.weights.memory_need import MemoryNeed


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """The build of torch, and what it sees of the machine. `problem` is why it could not be imported.

    `model_problem` is why a model whose files are whole would be refused when it is loaded.
    """

    is_installed: bool = True
    problem: str = ""
    version: str = ""
    cuda: str | None = None
    used_device: str = "cpu"
    used_dtype: str = ""
    is_dtype_emulated: bool = False
    cpu_products: tuple[str, ...] = ()
    device_problem: str = ""
    kernel: str = ""
    kernel_problem: str = ""
    model_problem: str = ""
    gpu_free_bytes: int = 0
    gpu_total_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Python, memory and limits; `gpus` are names and drivers, as nvidia-smi tells them."""

    python: tuple[int, int, int]
    num_cpus: int
    memory_free_bytes: int
    memory_bytes: int
    max_open_files: int
    gpus: tuple[str, ...] = ()
    num_driver_devices: int = 0


@dataclass(frozen=True, kw_only=True)
class DiskFacts:
    """A folder's disk. `problem` is why nothing can be written; times are in seconds."""

    folder: str
    free_bytes: int = 0
    bytes_per_second: float = 0.0
    sync_seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class DatabaseFacts:
    """The database. `revision` is `None` for one without tables; `ahead_seconds` is its clock's lead."""

    place: str
    problem: str = ""
    revision: str | None = None
    head: str = ""
    ahead_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlaceFacts:
    """Another service, such as a bucket, and why it cannot be used."""

    place: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class PortFacts:
    """The address to listen on; `holder` is who has it, if it is not free."""

    address: str
    problem: str = ""
    is_held_by_diffuserve: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model. `is_here` is false for one that is on the hub or in a store alone; `pull` gets it.

    `run_by` names the library whose pipeline is run as it is, `lacks` what it has not for that reason, and
    `quantization` is what its files hold. `needs` is the memory that its weights take, in each way to keep
    them, the fastest way first; `step_bytes` is what a request of its default size takes beside them.
    """

    name: str
    is_here: bool = True
    pull: str = "diffuserve pull"
    num_bytes: int = 0
    run_by: str = ""
    lacks: tuple[str, ...] = ()
    quantization: Quantization = Quantization.NONE
    problem: str = ""
    needs: tuple[MemoryNeed, ...] = ()
    step_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """A server that was named. `key_problem` is why it refuses the key."""

    url: str
    problem: str = ""
    key_problem: str = ""
    waits_for: str = ""
    ahead_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts for all checks together. There is no `database` where a server's packages are not installed."""

    machine: MachineFacts
    torch: TorchFacts
    disk: DiskFacts
    database: DatabaseFacts | None
    port: PortFacts
    model: ModelFacts
    wanted_device: str | None = None
    wanted_quantization: Quantization = Quantization.NONE
    wanted_offload: Offload = Offload.NONE
    bucket: PlaceFacts | None = None
    valkey: PlaceFacts | None = None
    server: ServerFacts | None = None
    unknown_variables: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that look like settings and are none, with the nearest one."""

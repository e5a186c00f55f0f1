"""Facts of this machine: everything here looks, and leaves nothing behind."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psutil

from diffuserve.cli.doctor.facts import DiskFacts, MachineFacts, ModelFacts, PortFacts, TorchFacts
from diffuserve.domain.errors import InvalidModel, InvalidParams, ModelNotFound
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.folders.folder import awaits_pull, find_local_model
from diffuserve.models.folders.known_models import known_model
from diffuserve.models.installed import dtype_of
from diffuserve.models.machine.hardware import count_cuda_devices
from diffuserve.models.registry import check_model, find_quantization
from diffuserve.models.weights.memory_need import MemoryNeed
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.store import ModelStore, is_stored

_PROBE_SECONDS = 120.0  # torch's import on a busy machine with a cold disk
_SMI_SECONDS = 20.0
_WRITTEN_BYTES = 32 * 1024 * 1024
_NUM_SYNCS = 5
# Of FLUX.1, whose parts are a transformer and a large text encoder, as most have today.
_QUANTIZED_SHARES = {
    Quantization.NONE: 1.0,
    Quantization.INT8: 0.6,
    Quantization.FP8: 0.6,
    Quantization.INT4: 0.45,
}
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_facts() -> MachineFacts:
    """Return the facts of Python, memory and GPUs."""
    memory, limit = psutil.virtual_memory(), _container_limit()
    return MachineFacts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        num_cpus=len(psutil.Process().cpu_affinity()) if sys.platform == "linux" else os.cpu_count() or 1,
        memory_free_bytes=min(memory.available, limit or memory.available),
        memory_bytes=min(memory.total, limit or memory.total),
        max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        gpus=_gpus(),
        num_driver_devices=count_cuda_devices(),
    )


def torch_facts(device: str | None, dtype: str | None, folder: Path | None = None) -> TorchFacts:
    """Import torch, and what loads the model of a folder, in another process: a crash is a finding too."""
    if find_spec("torch") is None:
        return TorchFacts(is_installed=False)
    asked = (device or "", dtype or "", str(folder or ""))
    command = [sys.executable, "-m", "diffuserve.cli.doctor.torch_probe", *asked]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:
        return TorchFacts(problem=f"it took more than {_PROBE_SECONDS:.0f} s")
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or [f"it ended with code {ended.returncode}"]
        return TorchFacts(problem=said[-1])
    return TorchFacts(**json.loads(ended.stdout.splitlines()[-1]))


def disk_facts(folder: Path) -> DiskFacts:
    """Write to the disk of a folder, which need not exist yet."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        speed, sync = _measured(existing)
    except OSError as error:
        return DiskFacts(folder=str(folder), problem=f"{existing} cannot be written ({error.strerror})")
    return DiskFacts(
        folder=str(folder),
        free_bytes=shutil.disk_usage(existing).free,
        bytes_per_second=speed,
        sync_seconds=sync,
    )


def port_facts(host: str, port: int) -> PortFacts:
    """Try to listen as a server would."""
    address = f"{host}:{port}"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except OSError as error:
        is_ours = _answers_as_diffuserve(f"http://{address}")
        return PortFacts(address=address, problem=str(error.strerror or error), is_held_by_diffuserve=is_ours)
    return PortFacts(address=address)


def model_facts(
    model: str, parts: Parts = ALL_PARTS, stored: ModelStoreConfig | None = None, item_bytes: int = 2
) -> ModelFacts:
    """Check a model's files, and the size of `parts` where a number takes `item_bytes`.

    No hub or store is asked for one that is not here.
    """
    try:
        if stored is not None and is_stored(model, stored):
            return _stored_facts(model, parts, stored, item_bytes)
        found = None if awaits_pull(model) else find_local_model(model)
        if found is None:
            return ModelFacts(name=model, is_here=False, needs=_published_needs(model, item_bytes))
        checked, quantization = check_model(str(found.path)), find_quantization(str(found.path), None)
    except (InvalidModel, InvalidParams, ModelNotFound) as error:
        return ModelFacts(name=model, problem=str(error))
    return ModelFacts(
        name=model,
        num_bytes=checked.num_weight_bytes(parts),
        run_by=checked.spec.run_by,
        lacks=_lacks(checked.spec),
        quantization=quantization,
        needs=tuple(checked.memory_needs(parts, item_bytes, quantization)),
        step_bytes=checked.min_bytes(checked.spec.resolve(checked.spec.simple_request("any"), seed=0)),
    )


def local_folder(model: str, stored: ModelStoreConfig) -> Path | None:
    """Return the folder of a model; `None` if it is not on this machine."""
    try:
        if is_stored(model, stored):
            held = ModelStore(stored).known(model)
            return None if held is None else held.folder
        found = None if awaits_pull(model) else find_local_model(model)
    except (InvalidModel, ModelNotFound):
        return None
    return None if found is None else found.path


def stored_dtype(model: str) -> str:
    """Return the dtype of a model's files, empty if it is not on this machine or cannot be read."""
    try:
        found = find_local_model(model)
    except (InvalidModel, ModelNotFound):
        return ""
    return "" if found is None else dtype_of(found.path)


def _published_needs(model: str, item_bytes: int) -> tuple[MemoryNeed, ...]:
    """Return the needs of a known model by its published parameters; its parts are known once it is here."""
    known = known_model(model)
    if known is None or known.num_parameters is None:
        return ()
    total = known.num_parameters * item_bytes
    return tuple(
        MemoryNeed(kind, Offload.NONE, round(total * share)) for kind, share in _QUANTIZED_SHARES.items()
    )


def _lacks(spec: ModelSpec) -> tuple[str, ...]:
    """Return what a model has not that others have."""
    abilities = {
        "shared passes": spec.shares_passes,
        "checkpoints": spec.resumes,
        "previews": spec.has_previews,
    }
    return tuple(name for name, is_there in abilities.items() if not is_there)


def _stored_facts(model: str, parts: Parts, stored: ModelStoreConfig, item_bytes: int) -> ModelFacts:
    held = ModelStore(stored).known(model)
    if held is None:
        return ModelFacts(name=model, is_here=False, pull="diffuserve models pull")
    return model_facts(str(held.folder), parts, item_bytes=item_bytes)


def _measured(folder: Path) -> tuple[float, float]:
    """Return the bytes per second of a large file, and the median seconds of a small write that is synced."""
    content = os.urandom(1024 * 1024)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        start = time.perf_counter()
        for _ in range(_WRITTEN_BYTES // len(content)):
            file.write(content)
        os.fsync(file.fileno())
        seconds = time.perf_counter() - start
        syncs = sorted(_sync_seconds(file.fileno()) for _ in range(_NUM_SYNCS))
    return _WRITTEN_BYTES / seconds, syncs[_NUM_SYNCS // 2]


def _sync_seconds(file: int) -> float:
    start = time.perf_counter()
    os.write(file, b"x" * 4096)
    os.fsync(file)
    return time.perf_counter() - start


def _gpus() -> tuple[str, ...]:
    """Return the GPUs as nvidia-smi names them, with their drivers; none without it."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ()
    command = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = ended.stdout.splitlines() if ended.returncode == 0 else []
    return tuple(line.replace(", ", ", driver ") for line in lines)


def _container_limit() -> int | None:
    """Return the bytes that the container may use; `None` without a limit."""
    try:
        text = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _answers_as_diffuserve(url: str) -> bool:
    import httpx

    try:
        response = httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False)
        return bool(response.json() == {"status": "ok"})
    except (httpx.HTTPError, ValueError):
        return False

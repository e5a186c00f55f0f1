"""Compiled blocks in a folder of this user's own: made there by `diffuserve compile`, used from there alone.

They are native code. So they are never read from a model's folder, a bucket or a hub, and files that another
user could have written are refused.
"""

import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.compiled.halves import CompilableBlocks, Compiled, compile_half, load_half
from diffuserve.models.machine.devices import dtype_name
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.private_files import make_private_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledKey:
    """Identifies what compiled blocks were made for; they fit nothing else."""

    block_shape: str
    dtype: str
    device: str
    torch_version: str
    source: str

    @classmethod
    def of(cls, block_shape: str, dtype: torch.dtype, device: torch.device) -> "CompiledKey":
        return cls(block_shape, dtype_name(dtype), _device_name(device), torch.__version__, _source())

    @property
    def folder_name(self) -> str:
        digest = hashlib.sha256("\n".join(astuple(self)).encode()).hexdigest()[:16]
        readable = re.sub(r"[^\w.]+", "-", f"{self.block_shape}-{self.dtype}-{self.device}")
        return f"{readable[:100]}-{digest}"


def compile_blocks(blocks: CompilableBlocks, device: torch.device, root: Path) -> Path:
    """Compile a model's blocks into their folder below `root` unless they exist, and return the folder.

    Raise `DeviceUnavailable` without a compiler, and `InvalidParams` for a `root` that others may enter.
    """
    make_private_folder(root, setting="cache_dir")
    folder = root / CompiledKey.of(blocks.shape, blocks.dtype, device).folder_name
    if folder.is_dir():
        return folder
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=root))
    try:
        for name, half in blocks.halves.items():
            compile_half(half, unfinished / f"{name}.pt2")
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    return folder


def use_compiled_blocks(pipeline: Pipeline, root: Path, device_type: str = "cuda") -> bool:
    """Make a pipeline use compiled blocks, if there are some for it; return whether it does.

    Nothing is ever compiled here. Compiled blocks gain nothing on CPUs, so they are used only on CUDA.
    """
    blocks = pipeline.blocks
    if pipeline.device.type != device_type or blocks is None:
        return False
    if reason := _unfit(pipeline):
        log.info("blocks run eagerly: %s", reason)
        return False
    folder = root / CompiledKey.of(blocks.shape, pipeline.dtype, pipeline.device).folder_name
    if not folder.is_dir():
        log.info("blocks run eagerly: `diffuserve compile` has made none for this model, device and torch")
        return False
    try:
        blocks.use({name: _load(root, folder, name) for name in blocks.names})
    except (InvalidModel, OSError, RuntimeError) as error:
        log.warning("blocks run eagerly: %s", error)
        return False
    log.info("blocks run compiled, from %s", folder)
    return True


def _unfit(pipeline: Pipeline) -> str:
    """Return why no compiled blocks fit a pipeline; nothing if some may."""
    if pipeline.quantization is not Quantization.NONE:
        return "their weights are quantized"
    if pipeline.residency.mode is not Offload.NONE:
        return "their weights are offloaded"
    if pipeline.ranks is not None:
        return "several GPUs share them"
    return "deterministic mode has products of its own" if pipeline.deterministic else ""


def _load(root: Path, folder: Path, name: str) -> Compiled:
    file = folder / f"{name}.pt2"
    for path in (root, folder, file):
        _check_own(path)
    return load_half(file)


def _check_own(path: Path) -> None:
    """Raise `InvalidModel` if another user may have written the code that would run here."""
    found = path.lstat()
    others = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if found.st_uid not in (0, os.geteuid()) or others or stat.S_ISLNK(found.st_mode):
        raise InvalidModel(
            f"{path}: other users can write it, and it is code; delete it, and run `diffuserve compile` again"
        )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} sm_{major}{minor}"
    return f"{_processor()} {torch.backends.cpu.get_cpu_capability()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _source() -> str:
    """Return a hash of the source of compiled blocks, which differs between releases."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()

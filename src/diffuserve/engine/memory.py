"""The memory budget of a denoising step."""

import os
from typing import TYPE_CHECKING

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.params import GenerationParams

if TYPE_CHECKING:
    import torch


def memory_budget(device: "torch.device", configured_bytes: int | None) -> int:
    """Return the bytes that a step may take.

    Without a configured number it is a part of what is free now: 90 % on a GPU, half on a CPU.
    """
    if configured_bytes is not None:
        return configured_bytes
    if device.type == "cuda":
        import torch  # what a CPU has free can be told without it

        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.9)
    return cpu_memory_budget()


def cpu_memory_budget() -> int:
    """Return the bytes that a step on a CPU may take: half of what is free now."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def check_memory(params: GenerationParams, needed: int, budget: int) -> None:
    """Raise `InvalidParams` if a step of a request needs more bytes than the budget has."""
    if needed > budget:
        size = f"{params.num_images} × {params.width}x{params.height}"
        room = f"about {needed >> 20:,} MiB a step, and {budget >> 20:,} MiB are free"
        raise InvalidParams("size", size, f"would take {room}; ask for fewer or smaller images")

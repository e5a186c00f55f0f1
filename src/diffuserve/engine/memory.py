"""The memory budget of a denoising step."""

import os

import torch


def memory_budget(device: torch.device, configured_bytes: int | None) -> int:
    """Return the bytes that a step may take.

    Without a configured number it is a part of what is free now: 90 % on a GPU, half on a CPU.
    """
    if configured_bytes is not None:
        return configured_bytes
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.9)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

"""How much memory a denoising step may take."""

import os

import torch


def memory_budget(device: torch.device, wanted: int | None) -> int:
    """As configured, else what is free: 90 % of it on a GPU, half of it on a CPU. In bytes."""
    if wanted is not None:
        return wanted
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.9)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

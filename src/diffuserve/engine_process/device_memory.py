"""The total and the used memory of an engine's device."""

import psutil
import torch


def used_bytes(device: torch.device) -> int:
    """Return the bytes in use; memory that torch caches for later requests does not count."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return total - free - kept
    return int(psutil.Process().memory_info().rss)


def limit_bytes(device: torch.device) -> int:
    """Return the device's memory; 0 for a CPU, where the agent knows the limit of both processes."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else 0

"""The memory that an engine's device has and uses."""

import psutil
import torch


def used_bytes(device: torch.device) -> int:
    """Return the bytes that no request could get, which leaves out what torch keeps for the next one."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return total - free - kept
    return int(psutil.Process().memory_info().rss)


def limit_bytes(device: torch.device) -> int:
    """Return the device's memory; 0 for a CPU, where the agent knows the limit of both processes."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else 0

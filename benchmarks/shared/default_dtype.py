"""The dtype that both sides of a comparison compute in."""

import torch

from diffuserve.models.machine.devices import default_dtype


def engine_dtype() -> torch.dtype:
    """Return what the engine chooses on this CPU for weights in bf16: bf16 where it is fast, or float32."""
    return default_dtype(torch.bfloat16, torch.device("cpu"))

"""The memory budget of a denoising step, and the check of requests against it."""

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams

if TYPE_CHECKING:
    import torch

NeededBytes = Callable[[GenerationParams], int]
"""The bytes that a request, whose defaults are filled in, takes in its largest phase."""


def memory_budget(device: "torch.device", configured_bytes: int | None, adapter_bytes: int = 0) -> int:
    """Return the bytes that a step may take.

    The default is a share of the memory that is free now: 90 % on a GPU, half on a CPU. On a GPU so many
    bytes are left for adapters, at most half of it; on a CPU they fit into the other half.
    """
    if configured_bytes is not None:
        return configured_bytes
    if device.type == "cuda":
        import torch  # free memory of a CPU is read without it

        free, _ = torch.cuda.mem_get_info(device)
        share = int(free * 0.9)
        return max(share - adapter_bytes, share // 2)
    return cpu_memory_budget()


def cpu_memory_budget() -> int:
    """Return the bytes that a step on a CPU may take: half of the memory that is free now."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def check_memory(spec: ModelSpec, params: GenerationParams, needed: NeededBytes, budget: int) -> None:
    """Raise `InvalidParams`, with the nearest request that fits, if a request exceeds the budget."""
    num_bytes = needed(params)
    if num_bytes <= budget:
        return
    size = f"{params.num_images} × {_size(spec, params)}"
    room = f"about {num_bytes >> 20:,} MiB at once, and {budget >> 20:,} MiB are free"
    advice = " or ".join(_nearest(spec, params, needed, budget))
    remedy = f"try {advice}" if advice else "free some memory, or use a smaller model"
    raise InvalidParams("size", size, f"would take {room}; {remedy}")


def _nearest(spec: ModelSpec, params: GenerationParams, needed: NeededBytes, budget: int) -> Iterator[str]:
    """Yield the largest request that fits: with fewer frames, fewer images, a smaller size, fewer seconds."""
    if shorter := _largest_fit(_shorter(spec, params), needed, budget):
        yield f"num_frames={shorter.num_frames}"
    fewer = [replace(params, num_images=count) for count in range(1, params.num_images)]
    if fewest := _largest_fit(fewer, needed, budget):
        yield f"num_images={fewest.num_images}"
    if smaller := _largest_fit(_smaller(spec, params), needed, budget):
        yield f"{smaller.width}x{smaller.height}"
    if briefer := _largest_fit(_briefer(params), needed, budget):
        yield f"seconds={briefer.seconds:g}"


def _size(spec: ModelSpec, params: GenerationParams) -> str:
    if spec.is_audio:
        return f"{params.seconds:g} s"
    frames = f" × {params.num_frames} frames" if (params.num_frames or 1) > 1 else ""
    return f"{params.width}x{params.height}{frames}"


def _shorter(spec: ModelSpec, params: GenerationParams) -> list[GenerationParams]:
    """Return the request with each shorter clip length of the model, the shortest first."""
    counts = range(1 + spec.temporal_stride, params.num_frames or 1, spec.temporal_stride)
    return [replace(params, num_frames=count) for count in counts]


def _smaller(spec: ModelSpec, params: GenerationParams) -> list[GenerationParams]:
    """Return the request in smaller sizes of about its proportions, the smallest first."""
    if not spec.has_size:
        return []
    assert params.width is not None
    assert params.height is not None
    longer, shorter = max(params.width, params.height), min(params.width, params.height)
    step = spec.size_multiple
    least = -(-spec.min_size // step) * step
    smaller = []
    for side in range(least, longer, step):
        other = max(least, round(side * shorter / longer / step) * step)
        width, height = (side, other) if params.width >= params.height else (other, side)
        smaller.append(replace(params, width=width, height=height))
    return smaller


def _briefer(params: GenerationParams) -> list[GenerationParams]:
    """Return the request of a sound with each smaller number of whole seconds, the shortest first."""
    return [replace(params, seconds=float(count)) for count in range(1, math.ceil(params.seconds or 0))]


def _largest_fit(
    requests: Sequence[GenerationParams], needed: NeededBytes, budget: int
) -> GenerationParams | None:
    """Return the last request that fits, of requests in ascending size."""
    count = bisect_right(requests, budget, key=needed)
    return requests[count - 1] if count else None

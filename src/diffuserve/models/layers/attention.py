"""Attention over packed sequences: tokens of many sequences in one row, attention within each.

Three kernels compute the same thing:

* `varlen-flash`: one FlashAttention call over all sequences, on CUDA (bf16 and fp16).
* `grouped-sdpa`: one dense SDPA call for each run of neighbouring sequences of equal length.
* `grouped-bmm`: the same runs with two plain batched products and a float32 softmax. On CPUs in
  bf16 the fused kernel is about twice as slow as this at the lengths that matter (48–1,000).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

# Scores of one product stay below this many elements, so that they fit the cache (but one head's
# never are split).
_MAX_SCORES = 2**18


@dataclass(frozen=True)
class Segments:
    """The sequences of a packed row: their lengths, and their cumulative lengths from 0.

    `cu_seqlens` is named and typed (int32) as FlashAttention's varlen kernels want it.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Int[Tensor, "sequences_plus_one"]

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> "Segments":
        """Build the segments of sequences with these lengths, in tokens."""
        cu_seqlens = torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return cls(lengths, cu_seqlens.to(device))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield neighbouring sequences of equal length, as (first token, number of sequences, length)."""
        start = 0
        for length, run in groupby(self.lengths):
            count = len(list(run))
            yield start, count, length
            start += count * length


QKV = Float[Tensor, "tokens 3 heads dim"]
Attended = Float[Tensor, "tokens heads dim"]


@dataclass(frozen=True)
class AttentionKernel:
    """Attention within each sequence, and the name it is reported under.

    Called with q, k, v of shape (tokens, 3, heads, dim); returns (tokens, heads, dim).
    """

    name: str
    attend: Callable[[Tensor, Segments], Tensor]

    def __call__(self, qkv: QKV, segments: Segments) -> Attended:
        return self.attend(qkv, segments)


def choose_kernel(device: torch.device, dtype: torch.dtype) -> AttentionKernel:
    """Return the fastest kernel that runs on this device with this dtype."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and _has_varlen(device):
        return AttentionKernel("varlen-flash", varlen_flash)
    if device.type == "cpu" and dtype == torch.bfloat16:
        return AttentionKernel("grouped-bmm", grouped_bmm)
    return AttentionKernel("grouped-sdpa", grouped_sdpa)


def varlen_flash(qkv: QKV, segments: Segments) -> Attended:
    """Attend in one FlashAttention call over all sequences (Dao 2023, arXiv:2307.08691)."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (x.contiguous() for x in qkv.unbind(1))
    longest = max(segments.lengths)
    attended = varlen_attn(query, key, value, segments.cu_seqlens, segments.cu_seqlens, longest, longest)
    assert isinstance(attended, Tensor)
    return attended


def grouped_sdpa(qkv: QKV, segments: Segments) -> Attended:
    """Attend in one dense SDPA call for each run of sequences."""
    return _by_run(qkv, segments.runs(), _sdpa)


def grouped_bmm(qkv: QKV, segments: Segments) -> Attended:
    """Attend in two batched products for each run of sequences, in parts that fit the cache."""
    num_heads = qkv.shape[2]
    most = {length: max(1, _MAX_SCORES // (num_heads * length**2)) for length in set(segments.lengths)}
    runs = (
        (start + done * length, min(count - done, most[length]), length)
        for start, count, length in segments.runs()
        for done in range(0, count, most[length])
    )
    return _by_run(qkv, runs, _bmm)


def _by_run(qkv: Tensor, runs: Iterable[tuple[int, int, int]], attend: Callable[[Tensor], Tensor]) -> Tensor:
    num_heads, dim = qkv.shape[2:]
    outputs = []
    for start, count, length in runs:
        run = qkv[start : start + count * length].view(count, length, 3, num_heads, dim)
        heads = run.permute(2, 0, 3, 1, 4).reshape(3, count * num_heads, length, dim)
        attended = attend(heads).view(count, num_heads, length, dim)
        outputs.append(attended.transpose(1, 2).reshape(count * length, num_heads, dim))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _sdpa(qkv: Float[Tensor, "3 batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
    query, key, value = qkv.unsqueeze(1)
    return F.scaled_dot_product_attention(query, key, value).squeeze(0)


def _bmm(qkv: Float[Tensor, "3 batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
    num_tokens = qkv.shape[2]
    chunk = max(1, _MAX_SCORES // num_tokens**2)
    query, key, value = qkv.contiguous()
    query = query * query.shape[-1] ** -0.5
    outputs = []
    for q, k, v in zip(query.split(chunk), key.split(chunk), value.split(chunk), strict=True):
        scores = torch.bmm(q, k.transpose(1, 2))
        outputs.append(torch.bmm(torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype), v))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _has_varlen(device: torch.device) -> bool:
    try:
        import torch.nn.attention.varlen
    except ImportError:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)

"""Attention over packed rows: tokens of many sequences in one row, attention within each.

Three kernels compute the same thing:

* `varlen-flash`: one FlashAttention call over all sequences, on CUDA (bf16 and fp16). `varlen-flash-4` is the
  same call with FlashAttention-4, where the package `flash-attn-4` is installed and knows the GPU.
* `grouped-sdpa`: one dense SDPA call for each run of neighboring sequences of equal length.
* `grouped-bmm`: the same runs, the short ones with two plain batched products and a float32 softmax. In bf16
  this is faster on some CPUs; others, including those with AMX, are faster with the fused kernel. From about
  180 tokens on the fused kernel takes at most half of the time on all CPUs.

Each does self-attention, with queries, keys and values from one product, cross-attention, with keys and
values in a row of their own, and causal attention, as language models do, where several heads of queries may
share a head of keys and values (Ainslie et al. 2023, arXiv:2305.13245).
"""

import functools
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from diffuserve.models.layers.segments import CausalSegments, CrossSegments, PaddedRun, Segments

log = logging.getLogger(__name__)

# Scores of one product stay below this many elements, so that they fit the cache.
_MAX_SCORES = 2**18
_MAX_PRODUCT_LENGTH = 128

_UP_TO_ITSELF = (-1, 0)  # the window of keys that a token attends to: all before it, none after

QKV = Float[Tensor, "tokens 3 heads dim"]
Query = Float[Tensor, "tokens heads dim"]
KeyValue = Float[Tensor, "keys 2 kv_heads dim"]
CausalKeyValue = Float[Tensor, "tokens 2 kv_heads dim"]
Attended = Float[Tensor, "tokens heads dim"]


@dataclass(frozen=True)
class AttentionKernel:
    """Attention within each sequence, and the name under which it is reported.

    Called with q, k, v of shape (tokens, 3, heads, dim); returns (tokens, heads, dim). `cross` takes q of
    shape (tokens, heads, dim) and k, v of shape (keys, 2, heads, dim), and returns the same. `causal` takes
    both from one row, where heads of queries are a multiple of those of keys and values.
    """

    name: str
    attend: Callable[[Tensor, Segments], Tensor]
    attend_across: Callable[[Tensor, Tensor, CrossSegments], Tensor]
    attend_causal: Callable[[Tensor, Tensor, CausalSegments], Tensor]

    def __call__(self, qkv: QKV, segments: Segments) -> Attended:
        return self.attend(qkv, segments)

    def cross(self, query: Query, key_value: KeyValue, segments: CrossSegments) -> Attended:
        return self.attend_across(query, key_value, segments)

    def causal(self, query: Query, key_value: CausalKeyValue, segments: CausalSegments) -> Attended:
        return self.attend_causal(query, key_value, segments)


def choose_kernel(device: torch.device, dtype: torch.dtype, deterministic: bool = False) -> AttentionKernel:
    """Return the fastest kernel that runs on this device with this dtype.

    On a CPU in bf16 that is measured, once in a process, and takes milliseconds; in deterministic mode it is
    always the same kernel.
    """
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and _has_varlen(device):
        name = "varlen-flash-4" if _activates_flash_4(device, dtype) else "varlen-flash"
        return AttentionKernel(name, varlen_flash, varlen_flash_across, varlen_flash_causal)
    if device.type == "cpu" and dtype == torch.bfloat16:
        return _GROUPED_BMM if deterministic else _faster_on_this_cpu()
    return _GROUPED_SDPA


def varlen_flash(qkv: QKV, segments: Segments) -> Attended:
    """Attend in one FlashAttention call over all sequences (Dao 2023, arXiv:2307.08691)."""
    query, key, value = qkv.unbind(1)
    return _varlen(query, key, value, segments, segments)


def varlen_flash_across(query: Query, key_value: KeyValue, segments: CrossSegments) -> Attended:
    """Attend in one FlashAttention call, to as many copies of the padding as each sequence has.

    The call adds nothing to scores, and beside the queries' attention to one another the copies cost little.
    """
    key, value = (x.index_select(0, segments.places) for x in key_value.unbind(1))
    return _varlen(query, key, value, segments.queries, segments.keys)


def varlen_flash_causal(query: Query, key_value: CausalKeyValue, segments: CausalSegments) -> Attended:
    """Attend in one FlashAttention call over all sequences, and in one for their padding."""
    return _around_padding(query, key_value, segments, _varlen_causal, varlen_flash_across)


def grouped_sdpa(qkv: QKV, segments: Segments) -> Attended:
    """Attend in one dense SDPA call for each run of sequences."""
    return _by_run(qkv, segments.runs(), _sdpa)


def grouped_sdpa_across(query: Query, key_value: KeyValue, segments: CrossSegments) -> Attended:
    """Attend in one dense SDPA call for each run of sequences."""
    return _by_padded_run(query, key_value, segments.runs, _sdpa)


def grouped_sdpa_causal(query: Query, key_value: CausalKeyValue, segments: CausalSegments) -> Attended:
    """Attend in one dense SDPA call for each run of sequences, and in one for each run of padding."""
    return _around_padding(query, key_value, segments, _causal_by_run, grouped_sdpa_across)


def grouped_bmm(qkv: QKV, segments: Segments) -> Attended:
    """Attend in two batched products for each run of short sequences, in parts that fit the cache."""
    num_heads = qkv.shape[2]
    most = {length: _max_sequences(length, num_heads) for length in set(segments.lengths)}
    runs = (
        (start + done * length, min(count - done, most[length]), length)
        for start, count, length in segments.runs()
        for done in range(0, count, most[length])
    )
    return _by_run(qkv, runs, _bmm)


def grouped_bmm_across(query: Query, key_value: KeyValue, segments: CrossSegments) -> Attended:
    """Attend in two batched products for each run of short sequences, in parts that fit the cache."""
    return _by_padded_run(query, key_value, segments.runs, _bmm)


_GROUPED_SDPA = AttentionKernel("grouped-sdpa", grouped_sdpa, grouped_sdpa_across, grouped_sdpa_causal)
# Encoders run once for a prompt, so their attention has no kernel that is faster on some CPUs.
_GROUPED_BMM = AttentionKernel("grouped-bmm", grouped_bmm, grouped_bmm_across, grouped_sdpa_causal)
_TRIAL_LENGTHS = (96, 96, 128)  # lengths of short sequences, which kernels treat differently
_TRIAL_HEADS, _TRIAL_HEAD_DIM = 6, 32
_NUM_TRIALS = 9


@functools.cache
def _faster_on_this_cpu() -> AttentionKernel:
    """Return the kernel that attends short sequences in bf16 faster: the best of some tries, in turn."""
    shape = (sum(_TRIAL_LENGTHS), 3, _TRIAL_HEADS, _TRIAL_HEAD_DIM)
    kernels = (_GROUPED_BMM, _GROUPED_SDPA)
    with torch.device("cpu"):  # modules that are built on the meta device choose their kernel there
        segments = Segments.of(_TRIAL_LENGTHS, torch.device("cpu"))
        qkv = torch.rand(shape, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
        tries = [[_seconds_of(kernel, qkv, segments) for kernel in kernels] for _ in range(_NUM_TRIALS)]
    best = [min(seconds) for seconds in zip(*tries, strict=True)]
    return kernels[best.index(min(best))]


@torch.inference_mode()
def _seconds_of(kernel: AttentionKernel, qkv: QKV, segments: Segments) -> float:
    start = time.perf_counter()
    kernel(qkv, segments)
    return time.perf_counter() - start


# Queries, keys and values of some sequences of equal length, and what is added to scores.
Batch = Float[Tensor, "batch heads queries dim"]
BatchKeys = Float[Tensor, "batch kv_heads keys dim"]
Bias = Float[Tensor, "batch 1 1 keys"]
_Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _by_run(qkv: Tensor, runs: Iterable[tuple[int, int, int]], attend: _Attend) -> Tensor:
    outputs = []
    for start, count, length in runs:
        run = qkv[start : start + count * length].unflatten(0, (count, length))
        query, key, value = run.transpose(1, 3).unbind(2)
        outputs.append(attend(query, key, value, None).transpose(1, 2).flatten(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _by_padded_run(query: Tensor, key_value: Tensor, runs: Iterable[PaddedRun], attend: _Attend) -> Tensor:
    outputs = []
    for run in runs:
        queries = query[run.start : run.start + run.count * run.length].unflatten(0, (run.count, run.length))
        rows = key_value.index_select(0, run.keys.flatten()).unflatten(0, tuple(run.keys.shape))
        key, value = rows.transpose(1, 3).unbind(2)
        bias = None if run.bias is None else run.bias[:, None, None]
        outputs.append(attend(queries.transpose(1, 2), key, value, bias).transpose(1, 2).flatten(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _causal_by_run(query: Tensor, key_value: Tensor, segments: Segments) -> Tensor:
    outputs = []
    for start, count, length in segments.runs():
        rows = slice(start, start + count * length)
        queries = query[rows].unflatten(0, (count, length)).transpose(1, 2)
        key, value = key_value[rows].unflatten(0, (count, length)).transpose(1, 3).unbind(2)
        has_groups = queries.shape[1] != key.shape[1]
        attended = F.scaled_dot_product_attention(queries, key, value, is_causal=True, enable_gqa=has_groups)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _around_padding(
    query: Tensor,
    key_value: Tensor,
    segments: CausalSegments,
    causal: Callable[[Tensor, Tensor, Segments], Tensor],
    across: Callable[[Tensor, Tensor, CrossSegments], Tensor],
) -> Tensor:
    """Attend causally among the own tokens of sequences, and from the padding after them to these."""
    if segments.own_at is None:
        return causal(query, key_value, segments.own)
    keys = key_value.index_select(0, segments.own_at)
    attended = torch.zeros_like(query)
    own = causal(query.index_select(0, segments.own_at), keys, segments.own)
    attended.index_copy_(0, segments.own_at, own)
    if segments.after is not None and segments.after_at is not None and len(segments.after_at):
        after = across(query.index_select(0, segments.after_at), keys, segments.after)
        attended.index_copy_(0, segments.after_at, after)
    return attended


def _sdpa(query: Batch, key: BatchKeys, value: BatchKeys, bias: Bias | None) -> Batch:
    has_groups = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=has_groups)


def _max_sequences(length: int, num_heads: int) -> int:
    """Return how many sequences of a run are attended at once."""
    if length > _MAX_PRODUCT_LENGTH:
        return sys.maxsize
    return max(1, _MAX_SCORES // (num_heads * length**2))


def _bmm(query: Batch, key: BatchKeys, value: BatchKeys, bias: Bias | None) -> Batch:
    if max(query.shape[2], key.shape[2]) > _MAX_PRODUCT_LENGTH:
        return _sdpa(query, key, value, bias)
    chunk = max(1, _MAX_SCORES // (query.shape[2] * key.shape[2]))
    flat = [x.reshape(-1, *x.shape[2:]).split(chunk) for x in (query * query.shape[-1] ** -0.5, key, value)]
    biases = _bias_parts(bias, query.shape[1], chunk) if bias is not None else [None] * len(flat[0])
    outputs = []
    for q, k, v, b in zip(*flat, biases, strict=True):
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = torch.softmax(scores if b is None else scores + b, dim=-1, dtype=torch.float32)
        outputs.append(torch.bmm(weights.to(v.dtype), v))
    attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return attended.view(query.shape)


def _bias_parts(bias: Bias, num_heads: int, chunk: int) -> tuple[Tensor, ...]:
    return bias.expand(-1, num_heads, -1, -1).flatten(0, 1).split(chunk)


def _varlen_causal(query: Tensor, key_value: Tensor, segments: Segments) -> Tensor:
    key, value = key_value.unbind(1)
    return _varlen(query, key, value, segments, segments, window_size=_UP_TO_ITSELF)


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, queries: Segments, keys: Segments, **options: Any
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    longest = max(queries.lengths), max(keys.lengths)
    if query.shape[1] != key.shape[1]:
        options["enable_gqa"] = True
    attended = varlen_attn(query, key, value, queries.cu_seqlens, keys.cu_seqlens, *longest, **options)
    assert isinstance(attended, Tensor)
    return attended


def _has_varlen(device: torch.device) -> bool:
    try:
        import torch.nn.attention.varlen
    except ImportError:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


_FLASH_4 = "FA4"  # torch's name
_FLASH_4_CAPABILITIES = (9, 10)  # Hopper and Blackwell
_FLASH_4_HEAD_DIM = 128


@functools.cache
def _activates_flash_4(device: torch.device, dtype: torch.dtype) -> bool:
    """Have FlashAttention-4 do the work of this process's FlashAttention-2, if it is there and works."""
    try:
        from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl
    except ImportError:  # an older torch
        return False
    if torch.cuda.get_device_capability(device)[0] not in _FLASH_4_CAPABILITIES:
        return False
    try:
        activate_flash_attention_impl(_FLASH_4)
    except ImportError:
        return False
    try:
        _attend_once(device, dtype)
    except Exception:
        log.warning("FlashAttention-4 fails on %s: FlashAttention-2 is used", device, exc_info=True)
        restore_flash_attention_impl()
        return False
    return True


@torch.inference_mode()
def _attend_once(device: torch.device, dtype: torch.dtype) -> None:
    with torch.device("cpu"):
        segments = Segments.of((8, 4), device)
    qkv = torch.ones(12, 3, 2, _FLASH_4_HEAD_DIM, device=device, dtype=dtype)
    varlen_flash(qkv, segments).sum().item()

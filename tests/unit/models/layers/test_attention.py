"""Packed attention against plain softmax attention, one sequence at a time in float64."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffuserve.models.layers import attention
from diffuserve.models.layers.attention import (
    AttentionKernel,
    choose_kernel,
    grouped_bmm,
    grouped_bmm_across,
    grouped_sdpa,
    grouped_sdpa_across,
    grouped_sdpa_causal,
    varlen_flash,
    varlen_flash_across,
    varlen_flash_causal,
)
from diffuserve.models.layers.segments import CausalSegments, CrossSegments, Segments

CPU = torch.device("cpu")
KERNELS = {"grouped-sdpa": grouped_sdpa, "grouped-bmm": grouped_bmm}
ACROSS = {"grouped-sdpa": grouped_sdpa_across, "grouped-bmm": grouped_bmm_across}
# Neighbors of equal length are one run, so lengths are drawn from few values.
LENGTHS = st.lists(st.sampled_from([1, 2, 7, 32, 48, 65]), min_size=1, max_size=8).map(tuple)


def make_qkv(lengths: tuple[int, ...], heads: int = 3, dim: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(sum(lengths), 3, heads, dim, generator=torch.Generator().manual_seed(seed))


def reference(qkv: Tensor, lengths: tuple[int, ...]) -> Tensor:
    outputs = []
    for sequence in qkv.double().split(lengths):
        query, key, value = (part.transpose(0, 1) for part in sequence.unbind(1))
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        outputs.append((scores.softmax(dim=-1) @ value).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25)
@given(lengths=LENGTHS, heads=st.integers(1, 4), seed=st.integers(0, 99))
@example(lengths=(32, 32, 32), heads=2, seed=0)
@example(lengths=(48, 7, 48), heads=2, seed=0)
def test_each_sequence_attends_to_itself_alone(
    kernel: str, lengths: tuple[int, ...], heads: int, seed: int
) -> None:
    qkv = make_qkv(lengths, heads, seed=seed)
    attended = KERNELS[kernel](qkv, Segments.of(lengths, CPU))
    torch.testing.assert_close(attended.double(), reference(qkv, lengths), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_bf16_stays_within_its_precision(kernel: str) -> None:
    lengths = (65, 48, 48, 7)
    qkv = make_qkv(lengths).bfloat16()
    attended = KERNELS[kernel](qkv, Segments.of(lengths, CPU))
    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(attended.double(), reference(qkv, lengths), rtol=0, atol=0.02)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lengths", [(600,), (300,) * 3, (700, 700, 5), (1_100, 64)], ids=str)
def test_long_sequences_are_attended_in_chunks_with_the_same_result(
    kernel: str, lengths: tuple[int, ...]
) -> None:
    qkv = make_qkv(lengths, heads=4)
    attended = KERNELS[kernel](qkv, Segments.of(lengths, CPU))
    torch.testing.assert_close(attended.double(), reference(qkv, lengths), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_far_apart_neither_overflow_nor_vanish(kernel: str) -> None:
    lengths = (48, 48)
    qkv = 30 * make_qkv(lengths)
    attended = KERNELS[kernel](qkv, Segments.of(lengths, CPU))
    torch.testing.assert_close(attended.double(), reference(qkv, lengths), rtol=0, atol=1e-2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_does_not_modify_its_input(kernel: str) -> None:
    qkv = make_qkv((48, 48, 7))
    before = qkv.clone()
    KERNELS[kernel](qkv, Segments.of((48, 48, 7), CPU))
    assert torch.equal(qkv, before)


@pytest.mark.parametrize(
    ("lengths", "runs"),
    [
        ((5,), [(0, 1, 5)]),
        ((5, 5, 5), [(0, 3, 5)]),
        ((5, 3, 3, 5), [(0, 1, 5), (5, 2, 3), (11, 1, 5)]),
    ],
)
def test_a_run_is_neighbors_of_equal_length(
    lengths: tuple[int, ...], runs: list[tuple[int, int, int]]
) -> None:
    assert list(Segments.of(lengths, CPU).runs()) == runs


@given(LENGTHS)
def test_runs_cover_every_token_once_and_in_order(lengths: tuple[int, ...]) -> None:
    runs = list(Segments.of(lengths, CPU).runs())
    assert [length for _, count, length in runs for _ in range(count)] == list(lengths)
    assert [start for start, _, _ in runs] == [
        sum(count * length for _, count, length in runs[:i]) for i in range(len(runs))
    ]


def test_cu_seqlens_are_the_running_sum_of_the_lengths_as_int32() -> None:
    cu_seqlens = Segments.of((5, 3, 4), CPU).cu_seqlens
    assert cu_seqlens.dtype == torch.int32
    assert cu_seqlens.tolist() == [0, 5, 8, 12]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float32, "grouped-sdpa"), (torch.bfloat16, "grouped-bmm"), (torch.float16, "grouped-sdpa")],
)
def test_the_kernel_for_a_cpu_depends_on_the_dtype(dtype: torch.dtype, name: str) -> None:
    kernel = choose_kernel(CPU, dtype, deterministic=True)
    assert kernel == AttentionKernel(name, KERNELS[name], ACROSS[name], grouped_sdpa_causal)
    qkv = make_qkv((7, 7)).to(dtype)
    torch.testing.assert_close(
        kernel(qkv, Segments.of((7, 7), CPU)).double(), reference(qkv, (7, 7)), rtol=0, atol=0.02
    )


@pytest.mark.parametrize("faster", ["grouped-bmm", "grouped-sdpa"])
def test_in_bf16_the_kernel_is_the_one_that_was_faster_when_tried(
    faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_seconds_of", lambda kernel, *_: 1.0 + (kernel.name != faster))
    attention._faster_on_this_cpu.cache_clear()
    try:
        assert choose_kernel(CPU, torch.bfloat16).name == faster
    finally:
        attention._faster_on_this_cpu.cache_clear()


def test_kernels_are_tried_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = choose_kernel(CPU, torch.bfloat16)
    monkeypatch.setattr(attention, "_seconds_of", None)
    assert choose_kernel(CPU, torch.bfloat16) is chosen


CROSS_TOLERANCE = 3e-5  # hundreds of equal terms round alike
# Sequences with numbers of queries, keys, and times that the padding is attended to.
CROSS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 7, 48, 200]),
        st.sampled_from([1, 2, 31, 32, 70]),
        st.sampled_from([0, 1, 33, 480]),
    ),
    min_size=1,
    max_size=6,
).filter(lambda sequences: any(queries for queries, _, _ in sequences))


def make_cross(
    sequences: list[tuple[int, int, int]], heads: int = 2, dim: int = 16
) -> tuple[Tensor, Tensor, CrossSegments]:
    generator = torch.Generator().manual_seed(0)
    queries, keys, padding = zip(*sequences, strict=True)
    query = torch.randn(sum(queries), heads, dim, generator=generator)
    rows = sum(count + min(1, pads) for count, pads in zip(keys, padding, strict=True))
    key_value = torch.randn(rows, 2, heads, dim, generator=generator)
    return query, key_value, CrossSegments.of(queries, keys, padding, CPU)


def cross_reference(query: Tensor, key_value: Tensor, sequences: list[tuple[int, int, int]]) -> Tensor:
    """Attend to the keys of each sequence, and to as many copies of its padding as it was padded with."""
    outputs = []
    rows = key_value.double().split([keys + min(1, padding) for _, keys, padding in sequences])
    clips = query.double().split([queries for queries, _, _ in sequences])
    for own, (_, keys, padding), clip in zip(rows, sequences, clips, strict=True):
        copies = own[keys:].expand(padding, -1, -1, -1)
        key, value = (part.transpose(0, 1) for part in torch.cat([own[:keys], copies]).unbind(1))
        scores = clip.transpose(0, 1) @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        outputs.append((scores.softmax(dim=-1) @ value).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("kernel", ACROSS)
@settings(max_examples=30)
@given(sequences=CROSS)
@example(sequences=[(48, 5, 507), (48, 9, 503), (48, 32, 0), (48, 32, 480)])
@example(sequences=[(7, 1, 0), (0, 2, 33), (7, 1, 1)])
def test_each_sequence_attends_to_its_keys_and_to_all_of_its_padding(
    kernel: str, sequences: list[tuple[int, int, int]]
) -> None:
    query, key_value, segments = make_cross(sequences)
    attended = ACROSS[kernel](query, key_value, segments)
    expected = cross_reference(query, key_value, sequences)
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=CROSS_TOLERANCE)


@pytest.mark.parametrize("kernel", ACROSS)
def test_cross_attention_in_bf16_stays_within_its_precision(kernel: str) -> None:
    sequences = [(48, 5, 507), (200, 9, 503), (48, 31, 1)]
    query, key_value, segments = make_cross(sequences)
    attended = ACROSS[kernel](query.bfloat16(), key_value.bfloat16(), segments)
    assert attended.dtype == torch.bfloat16
    expected = cross_reference(query.bfloat16(), key_value.bfloat16(), sequences)
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=0.02)


def test_neighbors_with_prompts_of_about_one_length_share_a_call() -> None:
    runs = CrossSegments.of([48, 48, 48, 48, 7], [5, 20, 40, 32, 32], [100, 90, 100, 0, 0], CPU).runs
    assert [(run.start, run.count, run.length, run.keys.shape[1]) for run in runs] == [
        (0, 2, 48, 32),
        (96, 1, 48, 64),
        (144, 1, 48, 32),
        (192, 1, 7, 32),
    ]
    assert [run.bias is None for run in runs] == [False, False, True, True]


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the call that only CUDA has by one that attends by cumulative lengths."""

    def varlen_attn(  
        query: Tensor, key: Tensor, value: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
        window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert all(part.stride(-1) == 1 for part in (query, key, value))
        assert (max_q, max_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))
        assert enable_gqa is (query.shape[1] != key.shape[1])
        outputs = []
        for index in range(len(cu_q) - 1):
            keys = slice(cu_k[index], cu_k[index + 1])
            own = query[cu_q[index] : cu_q[index + 1]]
            outputs.append(
                softmax_attention(own, torch.stack([key[keys], value[keys]], 1), window_size == (-1, 0))
            )
        return torch.cat(outputs)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)


def softmax_attention(query: Tensor, key_value: Tensor, is_causal: bool) -> Tensor:
    """Attend in one sequence; heads of keys and values are repeated for those of queries."""
    repeats = query.shape[1] // key_value.shape[2]
    key, value = key_value.repeat_interleave(repeats, dim=2).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


@pytest.mark.usefixtures("varlen")
def test_the_varlen_kernel_gets_every_key_as_often_as_it_counts() -> None:
    sequences = [(48, 5, 507), (0, 3, 4), (7, 9, 0), (48, 32, 1)]
    query, key_value, segments = make_cross(sequences)
    attended = varlen_flash_across(query, key_value, segments)
    expected = cross_reference(query, key_value, sequences)
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=CROSS_TOLERANCE)
    qkv = make_qkv((7, 48))
    together = varlen_flash(qkv, Segments.of((7, 48), CPU))
    torch.testing.assert_close(together.double(), reference(qkv, (7, 48)), rtol=0, atol=2e-6)


CAUSAL = {"grouped-sdpa": grouped_sdpa_causal, "varlen-flash": varlen_flash_causal}
OWN = [range(5), range(2, 7), range(7), range(2, 6), range(5)]
"""The tokens of sequences of seven that are no padding."""


def make_grouped(num_tokens: int, heads: int = 6, groups: int = 2, dim: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(num_tokens, heads, dim, generator=generator)
    return query, torch.randn(num_tokens, 2, groups, dim, generator=generator)


@pytest.mark.usefixtures("varlen")
@pytest.mark.parametrize("kernel", CAUSAL)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_token_attends_to_itself_and_those_before_it(kernel: str, groups: int) -> None:
    lengths = (5, 5, 1, 130, 7)
    query, key_value = make_grouped(sum(lengths), groups=groups)
    attended = CAUSAL[kernel](query, key_value, CausalSegments.of(lengths, CPU))
    parts = zip(query.double().split(lengths), key_value.double().split(lengths), strict=True)
    expected = torch.cat([softmax_attention(own, keys, is_causal=True) for own, keys in parts])
    torch.testing.assert_close(attended.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("varlen")
@pytest.mark.parametrize("kernel", CAUSAL)
def test_padding_is_never_attended_to_and_attends_to_what_is_before_it(kernel: str) -> None:
    length, mask = 7, torch.zeros(len(OWN), 7, dtype=torch.bool)
    for row, own in zip(mask, OWN, strict=True):
        row[list(own)] = True
    query, key_value = make_grouped(length * len(OWN))
    attended = CAUSAL[kernel](query, key_value, CausalSegments.padded(mask, CPU)).unflatten(0, (-1, length))
    for row, own in enumerate(OWN):
        first = row * length
        for place in range(length):
            keys = key_value[first + own.start : first + min(place + 1, own.stop)].double()
            expected = torch.zeros(1, *query.shape[1:], dtype=torch.float64)
            if place >= own.start:
                mine = query[first + place, None].double()
                expected = softmax_attention(mine, keys, is_causal=False)
            torch.testing.assert_close(attended[row, place, None].double(), expected, rtol=0, atol=2e-6)


def test_a_sequence_of_padding_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="no padding"):
        CausalSegments.padded(torch.tensor([[True, False], [False, False]]), CPU)


def test_a_view_of_a_run_reads_and_writes_the_row() -> None:
    row = torch.arange(12.0)[:, None]
    segments = Segments.of((2, 2, 0, 5, 3), CPU)
    for which, part in segments.views(row):
        part += 100.0 * torch.arange(5)[which, None, None]
    assert row.flatten().tolist() == [0, 1, 102, 103, 304, 305, 306, 307, 308, 409, 410, 411]


@pytest.mark.parametrize(
    ("start", "stop", "lengths"),
    [(0, 7, (5, 2)), (0, 5, (5, 0)), (4, 6, (1, 1)), (5, 9, (0, 2)), (8, 9, (0, 0))],
)
def test_a_part_of_a_row_has_some_tokens_of_each_sequence(
    start: int, stop: int, lengths: tuple[int, ...]
) -> None:
    assert Segments.of((5, 2), CPU).part(start, stop) == lengths

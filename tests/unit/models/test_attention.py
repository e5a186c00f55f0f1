"""Packed attention against plain softmax attention, one sequence at a time in float64."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffuserve.models.layers.attention import (
    AttentionKernel,
    choose_kernel,
    grouped_bmm,
    grouped_bmm_across,
    grouped_sdpa,
    grouped_sdpa_across,
)
from diffuserve.models.layers.segments import Segments

CPU = torch.device("cpu")
KERNELS = {"grouped-sdpa": grouped_sdpa, "grouped-bmm": grouped_bmm}
ACROSS = {"grouped-sdpa": grouped_sdpa_across, "grouped-bmm": grouped_bmm_across}
# Neighbours of equal length are one run, so lengths are drawn from few values.
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
def test_a_run_is_neighbours_of_equal_length(
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
    kernel = choose_kernel(CPU, dtype)
    assert kernel == AttentionKernel(name, KERNELS[name], ACROSS[name])
    qkv = make_qkv((7, 7)).to(dtype)
    torch.testing.assert_close(
        kernel(qkv, Segments.of((7, 7), CPU)).double(), reference(qkv, (7, 7)), rtol=0, atol=0.02
    )

"""Triton's kernels compute what the formulas say, and compile for GPUs; a machine without it does without."""

import importlib.util
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from diffuserve.models.layers import fused_ops, triton_kernels
from diffuserve.models.layers.fused_ops import is_fused
from support.interpreted_kernels import filled, interpreter, prepared_in_place
from support.pretend_cuda import pretend_cuda

# What float32 may differ by when sums are taken in another order, and one step of the shorter dtypes.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


Filled = Callable[[str, tuple[Any, ...], Tensor], Tensor]


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with interpreter() as process:
        yield process


@pytest.fixture
def interpreted(process: ProcessPoolExecutor) -> Filled:
    return lambda name, operands, out: process.submit(filled, name, operands, out).result()


class Random:
    """Draws tensors, all from one seed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(5)

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def rotation(self, tokens: int, dim: int) -> Tensor:
        angle = 9 * torch.randn(tokens, dim // 2, generator=self.generator)
        return torch.view_as_real(torch.polar(torch.ones_like(angle), angle))

    def places(self, tokens: int, joint: int) -> Tensor:
        return torch.randperm(joint, generator=self.generator)[:tokens]


def assert_equal(left: Tensor, right: Tensor) -> None:
    tolerance = TOLERANCE[left.dtype]
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


OWNER = torch.tensor([0, 0, 0, 2, 2, 1, 1, 2])


@DTYPES
@pytest.mark.parametrize("width", [64, 96])
def test_the_kernel_normalizes_and_modulates(interpreted: Filled, dtype: torch.dtype, width: int) -> None:
    random = Random(dtype)
    rows, factors = 3 * random.numbers(8, width) + 1, random.numbers(3, 6, width)
    operands = (rows, factors[:, 1], factors[:, 0], OWNER, 1e-6)
    computed = interpreted("norm_modulated", operands, torch.empty_like(rows))
    assert_equal(computed, fused_ops.norm_modulated(*operands, out=torch.empty_like(rows)))


@DTYPES
@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("is_scaled", [True, False])
def test_the_kernel_divides_by_the_rms_and_modulates(
    interpreted: Filled, dtype: torch.dtype, width: int, is_scaled: bool
) -> None:
    random = Random(dtype)
    rows, factors, weight = (
        3 * random.numbers(8, width) + 1,
        random.numbers(3, 4, width),
        random.numbers(width),
    )
    operands = (rows, weight, *((factors[:, 1], OWNER) if is_scaled else (None, None)), 1e-6)
    computed = interpreted("rms_norm_modulated", operands, torch.empty_like(rows))
    assert_equal(computed, fused_ops.rms_norm_modulated(*operands, out=torch.empty_like(rows)))


@DTYPES
@pytest.mark.parametrize("is_normed", [True, False])
def test_the_kernel_adds_what_is_gated(interpreted: Filled, dtype: torch.dtype, is_normed: bool) -> None:
    random = Random(dtype)
    factors, joint = random.numbers(3, 6, 96), random.numbers(20, 96)
    weight = random.numbers(96) if is_normed else None
    operands = (joint[5:13], factors[:, 2], 3 * random.numbers(8, 96) + 1, OWNER, weight, 1e-6)
    computed = interpreted("add_gated", operands, torch.empty(8, 96, dtype=dtype))
    assert_equal(computed, fused_ops.add_gated(*operands, out=torch.empty(8, 96, dtype=dtype)))


@DTYPES
@pytest.mark.parametrize("width", [96, 5000])
def test_the_kernel_multiplies_by_the_gates(interpreted: Filled, dtype: torch.dtype, width: int) -> None:
    both = 3 * Random(dtype).numbers(3, 40 + 2 * width)[:, 40:]
    computed = interpreted("silu_gated", (both,), both.new_empty(3, width))
    assert_equal(computed, fused_ops.silu_gated(both, out=both.new_empty(3, width)))


@DTYPES
@pytest.mark.parametrize(("heads", "dim"), [(2, 16), (3, 24)])
@pytest.mark.parametrize("is_rotated", [True, False])
def test_the_kernel_prepares_rows_and_puts_them_in_their_places(
    interpreted: Filled, dtype: torch.dtype, heads: int, dim: int, is_rotated: bool
) -> None:
    random = Random(dtype)
    qkv, weights = random.numbers(5, 3, heads, dim), random.numbers(2, dim)
    rotation = random.rotation(5, dim) if is_rotated else None
    operands = (qkv, *weights, rotation, random.places(5, 9), 1e-6)
    joint = torch.zeros(9, 3, heads, dim, dtype=dtype)
    computed = interpreted("prepare_qkv", operands, joint.clone())
    assert_equal(computed, fused_ops.prepare_qkv(*operands, out=joint))
    assert int((computed != 0).any(dim=(1, 2, 3)).sum()) == 5, "no other row is touched"


@DTYPES
def test_the_kernel_prepares_rows_in_place_and_leaves_the_values(
    process: ProcessPoolExecutor, dtype: torch.dtype
) -> None:
    random = Random(dtype)
    qkv, weights, rotation = random.numbers(5, 3, 2, 16), random.numbers(2, 16), random.rotation(5, 16)
    operands = (*weights, rotation, None, 1e-6)
    computed = process.submit(prepared_in_place, qkv.clone(), *operands).result()
    assert_equal(computed, fused_ops.prepare_qkv(qkv, *operands, out=torch.empty_like(qkv)))
    assert torch.equal(computed[:, 2], qkv[:, 2])


POINTERS = {"owner": "*i64", "places": "*i64", "rotation": "*fp32"}
FLUX_SHAPES = {
    "_norm_modulated": {"BLOCK": 4096},
    "_rms_norm_modulated": {"HAS_SCALE": True, "BLOCK": 4096},
    "_add_gated": {"HAS_NORM": True, "BLOCK": 4096},
    "_silu_gated": {"BLOCK": 4096},
    "_prepare_qkv": {"HAS_ROTATION": True, "HAS_PLACES": True, "HEADS": 32, "DIM": 128},
}


@pytest.mark.parametrize("name", FLUX_SHAPES)
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_for_gpus_and_move_sixteen_bytes_at_once(
    name: str, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(triton_kernels, name)
    constants = FLUX_SHAPES[name]
    types = {argument: _type_of(argument, constants) for argument in kernel.arg_names}
    # Triton finds out at each call which pointers, strides and sizes are multiples of 16, as FLUX.1's are.
    multiples = [
        index
        for index, (argument, kind) in enumerate(types.items())
        if kind.startswith("*") or kind == "i64" or argument in ("width", "head_dim")
    ]
    source = ASTSource(
        kernel,
        types,
        {(kernel.arg_names.index(argument),): value for argument, value in constants.items()},
        {(index,): [["tt.divisibility", 16]] for index in multiples},
    )
    assembly = compile_kernel(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
    assert "ld.global.v4.b32" in assembly
    assert "st.global.v4.b32" in assembly
    assert "st.global.b" not in assembly, "a number at a time would take several times as long"


def _type_of(argument: str, constants: dict[str, Any]) -> str:
    if argument in constants:
        return "constexpr"
    if argument == "eps":
        return "fp32"
    if argument.endswith("stride"):
        return "i64"
    return "i32" if argument in ("width", "num_heads", "head_dim") else POINTERS.get(argument, "*bf16")


@pytest.fixture
def untried() -> Iterator[None]:
    """Forget whether kernels work here, before and after."""
    fused_ops._works_on.cache_clear()
    yield
    fused_ops._works_on.cache_clear()


def test_kernels_are_for_cuda_alone(untried: None) -> None:
    assert not is_fused(torch.ones(1))
    with pretend_cuda():
        assert is_fused(torch.ones(1, device="cuda:0"))


def test_a_machine_on_which_triton_builds_nothing_does_without(
    untried: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    with pretend_cuda(), caplog.at_level(logging.WARNING):
        row = torch.ones(1, device="cuda:0")
        monkeypatch.setattr(torch.ops.diffuserve, "add_gated", no_compiler)
        assert not is_fused(row)
    assert "Failed to find C compiler" in caplog.text


def test_a_machine_without_triton_does_without(untried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pretend_cuda():
        assert not is_fused(torch.ones(1, device="cuda:0"))

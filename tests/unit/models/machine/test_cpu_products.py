"""Products of oneDNN: what they compute where this CPU has them, and engines on a CPU without them."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from diffuserve.models.machine.cpu_products import (
    U8_ZERO,
    cpu_has_int8,
    fuses_gelu,
    int8_product,
    linear_gelu,
)

_OLD_CPU = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
_DRAW = """
import sys, torch
from diffuserve import Engine, GenerationParams
from diffuserve.models.machine.cpu_products import cpu_has_bf16, cpu_has_int8, fuses_gelu
assert not (cpu_has_bf16() or cpu_has_int8() or fuses_gelu(torch.bfloat16))
for dtype, quantization in (("float32", "int8"), ("bfloat16", "none")):
    print(dtype, file=sys.stderr, flush=True)
    with Engine.load("tiny-flux", device="cpu", dtype=dtype, quantization=quantization) as engine:
        assert engine.pipeline.describe()["dtype"] == dtype
        engine.generate(GenerationParams(prompt="a blue star", width=64, height=64, num_inference_steps=1))
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_inside_the_product_is_gelu_of_the_product(dtype: torch.dtype) -> None:
    if not fuses_gelu(dtype):
        pytest.skip(f"oneDNN has no such product in {dtype} on this CPU")
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((5, 48), (96, 48), (96,)))
    expected = F.gelu(F.linear(x.double(), weight.double(), bias.double()), approximate="tanh")
    torch.testing.assert_close(linear_gelu(x, weight, bias).double(), expected, rtol=0.02, atol=1e-5)


def test_products_of_bytes_are_exact() -> None:
    if not cpu_has_int8():
        pytest.skip("oneDNN's products of bytes may overflow on this CPU")
    x = torch.randint(0, 256, (7, 320), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (96, 320), dtype=torch.int8)
    expected = (x.long() - U8_ZERO) @ weight.long().t()
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    assert torch.equal(int8_product(x, packed, torch.ones(96)).long(), expected)


def test_an_older_cpu_draws_in_every_dtype_and_says_what_is_slow() -> None:
    environment = os.environ | _OLD_CPU
    done = subprocess.run([sys.executable, "-c", _DRAW], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    of_float32, _, of_bfloat16 = done.stderr.partition("bfloat16\n")
    assert of_float32.startswith("float32\n")
    assert "is slow here" not in of_float32
    assert "bfloat16 is slow here" in of_bfloat16

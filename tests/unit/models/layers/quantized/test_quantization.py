"""Weights and activations in few bits, against the formulas of their kinds."""

import pytest
import torch
from torch import Tensor

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization, parse_quantization
from diffuserve.models.layers.quantized.quantization import (
    GROUP,
    QuantizedWeight,
    can_quantize,
    group_size,
    quantize_tokens,
    quantize_weight,
    unpack_fp8,
)

INT8, FP8, INT4 = Quantization.INT8, Quantization.FP8, Quantization.INT4
KINDS = [INT8, FP8, INT4]
ROWS, COLUMNS = 24, 3 * GROUP


def make_weight(seed: int = 0) -> Tensor:
    """Return random rows of very different sizes, one of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(ROWS, COLUMNS, generator=generator) * torch.logspace(-6, 4, ROWS)[:, None]
    weight[3] = 0.0
    return weight


def error(weight: Tensor, kind: Quantization) -> Tensor:
    return (quantize_weight(weight, kind).unpacked(torch.float32) - weight).abs()


@pytest.mark.parametrize("seed", range(3))
def test_8_bit_integers_are_off_by_half_a_step_of_their_row_at_most(seed: int) -> None:
    weight = make_weight(seed)
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    assert (error(weight, INT8) <= 0.5001 * step).all()


@pytest.mark.parametrize("seed", range(3))
def test_8_bit_floats_are_off_by_a_sixteenth_or_by_half_their_smallest_step(seed: int) -> None:
    weight = make_weight(seed)
    scale = weight.abs().amax(dim=1, keepdim=True) / 448
    assert (error(weight, FP8) <= torch.maximum(weight.abs() / 16, scale * 2.0**-10) * 1.0001).all()


@pytest.mark.parametrize("seed", range(3))
def test_4_bits_are_off_by_half_a_step_of_their_group_and_its_rounded_ends(seed: int) -> None:
    weight = make_weight(seed)
    groups = weight.unflatten(1, (-1, GROUP))
    lowest, highest = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (highest - lowest) / 15
    rounding = 2.0**-8 * torch.maximum(lowest.abs(), highest.abs())  # of scale and zero, to bf16
    bound = (0.5 * step + 3 * rounding).expand_as(groups).flatten(1)
    assert (error(weight, INT4) <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_number_of_each_row_and_its_zeros_come_back(kind: Quantization) -> None:
    weight = make_weight()
    back = quantize_weight(weight, kind).unpacked(torch.float32)
    largest = weight.abs().argmax(dim=1, keepdim=True)
    torch.testing.assert_close(back.gather(1, largest), weight.gather(1, largest), rtol=0.02, atol=0)
    assert torch.equal(back[3], weight[3])


@pytest.mark.parametrize(("kind", "bits"), [(INT8, 8.2), (FP8, 8.2), (INT4, 4.5)])
def test_a_weight_takes_the_bits_of_its_kind(kind: Quantization, bits: float) -> None:
    assert 8 * quantize_weight(make_weight(), kind).nbytes / make_weight().numel() <= bits


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_weight_are_quantized_by_themselves(kind: Quantization) -> None:
    """The scales of products that are fused are those of their parts."""
    weight = make_weight()
    whole, part = quantize_weight(weight, kind), quantize_weight(weight[5:9], kind)
    cut = whole.rows(5, 9)
    for name, tensor in part.tensors.items():
        assert torch.equal(cut.tensors[name].float(), tensor.float())


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_a_token_is_scaled_by_its_own_numbers_alone(kind: Quantization) -> None:
    tokens = make_weight().to(torch.bfloat16)
    together, scales = quantize_tokens(tokens, kind)
    for index in range(len(tokens)):
        alone, scale = quantize_tokens(tokens[index : index + 1], kind)
        assert torch.equal(together[index].float(), alone[0].float())
        assert torch.equal(scales[index], scale[0])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [INT8, FP8])
def test_what_is_not_finite_is_seen_in_the_scale(kind: Quantization, number: float) -> None:
    tokens = torch.ones(2, 8)
    tokens[0, 3] = number
    _, scales = quantize_tokens(tokens, kind)
    assert scales.isfinite().squeeze(1).tolist() == [False, True]


def test_every_8_bit_float_is_unpacked_as_torch_does() -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)  # without the two that are no numbers
    assert torch.equal(unpack_fp8(codes), codes.to(torch.bfloat16))


def test_4_bits_need_whole_groups() -> None:
    assert can_quantize(INT4, 2 * GROUP)
    assert not can_quantize(INT4, GROUP + 32)
    assert can_quantize(INT8, GROUP + 32)


@pytest.mark.parametrize("seed", range(3))
def test_8_bit_integers_in_groups_are_off_by_half_a_step_of_their_group_at_most(seed: int) -> None:
    weight = make_weight(seed) / 1e4
    back = quantize_weight(weight, INT8, SMALL_GROUP).unpacked(torch.float32)
    grouped, found = weight.unflatten(1, (-1, SMALL_GROUP)), back.unflatten(1, (-1, SMALL_GROUP))
    largest = grouped.abs().amax(-1, keepdim=True)
    bound = largest / 254 + largest / 2048 + 127 * 2.0**-25  # the scale is rounded to fp16
    assert ((found - grouped).abs() <= bound).all()


@pytest.mark.parametrize(("kind", "bits"), [(INT8, 8.5), (INT4, 5)])
def test_small_groups_are_told_by_the_shapes_that_are_stored(kind: Quantization, bits: float) -> None:
    weight = quantize_weight(make_weight(), kind, SMALL_GROUP)
    read = QuantizedWeight.of(weight.codes, weight.scale, weight.zero)
    assert (read.kind, read.group) == (kind, SMALL_GROUP)
    assert 8 * read.nbytes / make_weight().numel() == bits
    assert torch.equal(read.rows(5, 9).unpacked(torch.float32), weight.unpacked(torch.float32)[5:9])


def test_one_scale_for_each_row_is_no_group() -> None:
    assert group_size(INT8, (4, SMALL_GROUP), (4, 1)) is None
    assert group_size(FP8, (4, 64), (4, 2)) is None
    assert group_size(INT8, (4, 64), (2, 2)) is None


def test_scales_in_fp16_are_not_rounded_to_bf16_before_they_are_used() -> None:
    weight = quantize_weight(make_weight()[8:16], INT8, SMALL_GROUP)
    exact = weight.unpacked(torch.float32)
    assert torch.equal(weight.unpacked(torch.bfloat16), exact.half().bfloat16())


@pytest.mark.parametrize("shape", [(ROWS, 1), (1,), (ROWS,)])
def test_scales_of_other_shapes_are_read(shape: tuple[int, ...]) -> None:
    codes = quantize_weight(make_weight(), INT8).codes
    read = QuantizedWeight.of(codes, torch.full(shape, 0.5, dtype=torch.bfloat16), None)
    assert torch.equal(read.unpacked(torch.float32), codes * 0.5)


@pytest.mark.parametrize(
    ("codes", "scale", "zero"),
    [
        (torch.zeros(4, 8, dtype=torch.int32), torch.ones(4), None),
        (torch.zeros(4, 8, dtype=torch.int8), torch.ones(3), None),
        (torch.zeros(4, 8, dtype=torch.int8), torch.ones(4, dtype=torch.int32), None),
        (torch.zeros(4, 32, dtype=torch.uint8), torch.ones(4, 1), None),
        (torch.zeros(4, 32, dtype=torch.uint8), torch.ones(4, 3), torch.ones(4, 3)),
        (torch.zeros(4, 33, dtype=torch.uint8), torch.ones(4, 1), torch.ones(4, 1)),
        (torch.zeros(4, dtype=torch.int8), torch.ones(4), None),
    ],
)
def test_codes_and_scales_that_do_not_fit_are_refused(
    codes: Tensor, scale: Tensor, zero: Tensor | None
) -> None:
    with pytest.raises(ValueError, match=r"scale|kind|zero"):
        QuantizedWeight.of(codes, scale, zero)


def test_a_quantization_is_named_or_refused() -> None:
    assert parse_quantization(None) is None
    assert parse_quantization("fp8") is FP8
    with pytest.raises(InvalidParams, match="none, int8, fp8, int4"):
        parse_quantization("nf4")

"""Denoising steps of packed image transformers at full size, counted on tensors that have no memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffuserve.domain.models.cost import Workload
from diffuserve.models.families.flux import positions as flux_positions
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.families.flux2 import positions as flux2_positions
from diffuserve.models.families.flux2.config import Flux2Config
from diffuserve.models.families.flux2.transformer import Flux2Transformer
from diffuserve.models.families.packed_images.transformer import PackedTransformer, TransformerConfig
from diffuserve.models.families.qwen_image import positions as qwen_image_positions
from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.families.qwen_image.transformer import QwenImageTransformer
from diffuserve.models.families.z_image import positions as z_image_positions
from diffuserve.models.families.z_image.config import ZImageConfig
from diffuserve.models.families.z_image.transformer import ZImageTransformer
from diffuserve.models.layers.adapted.adapters import NO_ADAPTERS, Adapter, Delta, PassAdapters, Uses
from diffuserve.models.layers.attention import (
    AttentionKernel,
    varlen_flash,
    varlen_flash_across,
    varlen_flash_causal,
)
from diffuserve.models.layers.fused_ops import is_fused
from diffuserve.models.layers.joint.packing import (
    Grid,
    LayoutRules,
    PackedInput,
    PackedLayout,
    SequenceShape,
    pack_layout,
)
from diffuserve.models.layers.joint.sharding import shard_layout
from diffuserve.models.layers.linear import name_layers
from diffuserve.models.layers.segments import Segments
from diffuserve.models.pipelines.base import map_tensors
from support.kernel_counter import KernelCounter, fake_cuda
from support.rank_step import FirstRank, SharedStep

_CUDA = torch.device("cuda:0")
_ITEM_BYTES = 2  # of bf16
_RANK = 16  # of adapters


@dataclass(frozen=True)
class StepModel:
    """A transformer at its full size, and what its sequences are.

    `channels` and `text_width` are those of its inputs' tokens. `prompts` are the tokens of an image's texts,
    each of which is a sequence: one, or two where a negative prompt guides. `cuts_factors`: of several ranks
    each has some channels of every factor.
    """

    config: TransformerConfig
    make: Callable[[AttentionKernel], PackedTransformer]
    rules: LayoutRules
    channels: int
    text_width: int
    prompts: tuple[int, ...]
    cuts_factors: bool = True

    def shapes(self, images: int, grid: Grid) -> list[SequenceShape]:
        """Return the sequences of so many images of a size."""
        return [SequenceShape(tokens, grid) for tokens in self.prompts] * images


@dataclass
class CountedStep:
    """What a step is for a GPU; `attention_flops` are those of both products of all attentions."""

    kernels: KernelCounter = field(default_factory=KernelCounter)
    attention_flops: int = 0

    @property
    def flops(self) -> int:
        """Return the operations of all products and attentions."""
        return self.kernels.of("product").flops + self.attention_flops


def count_step(
    model: StepModel, shapes: Sequence[SequenceShape], adapters: Sequence[int] = ()
) -> CountedStep:
    """Count a transformer's pass over sequences of these shapes, in bf16 on CUDA.

    `adapters` are the numbers of the adapter of each sequence: equal ones are the same.
    """
    step = CountedStep()
    on_cpu = pack_layout(shapes, model.rules, torch.device("cpu"))
    with fake_cuda() as fake, torch.no_grad():  # in inference mode a linear layer would arrive whole
        layout = map_tensors(on_cpu, lambda tensor: fake.from_tensor(tensor).to(_CUDA))
        transformer: Any = _transformer(model, _counting(step))
        packed = PackedInput(
            image=_empty(len(layout.image_at), model.channels),
            text=_empty(len(layout.text_at), model.text_width),
            factors=_empty(len(shapes), transformer.num_factors, model.config.dim),
            layout=layout,
            adapters=_adapters(transformer, shapes, adapters),
        )
        assert is_fused(packed.image), "kernels of Triton take part"
        with step.kernels:
            transformer(packed)
    return step


def _adapters(transformer: Any, shapes: Sequence[SequenceShape], numbers: Sequence[int]) -> PassAdapters:
    """Return adapters of rank 16 on all layers of a pass; parts of fused ones have deltas of their own."""
    if not numbers:
        return NO_ADAPTERS
    name_layers(transformer)
    layers = {place.parameter: place.num_parts for place in transformer.placements().values()}
    made = {number: _adapter(transformer, layers) for number in set(numbers)}
    uses: list[Uses] = [((made[number], 0.5),) for number in numbers]
    return PassAdapters.of([each.text for each in shapes], [each.image_tokens for each in shapes], uses)


def _adapter(transformer: Any, layers: Mapping[str, int]) -> Adapter:
    deltas = {}
    for name, parts in layers.items():
        weight = transformer.get_parameter(name)
        if weight.dim() == 2:
            width = len(weight) // parts
            deltas[name.removesuffix(".weight")] = [
                Delta(_empty(weight.shape[1], _RANK), _empty(_RANK, width), part * width)
                for part in range(parts)
            ]
    return Adapter("fake", deltas)


def shared_step(model: StepModel, shapes: Sequence[SequenceShape]) -> SharedStep:
    """Return a step of these sequences, for ranks to share."""
    return SharedStep(
        [shape.image_tokens for shape in shapes],
        [model.config.pair_operations * shape.tokens**2 for shape in shapes],
        partial(_lay_out, model, shapes),
        partial(_prepare, model),
    )


def _lay_out(
    model: StepModel, shapes: Sequence[SequenceShape], indices: Sequence[int], num_sharing: int
) -> PackedLayout:
    whole = pack_layout([shapes[index] for index in indices], model.rules, torch.device("cpu"))
    return whole if num_sharing == 1 else shard_layout(whole, 0, num_sharing).layout


def _prepare(
    model: StepModel, rank: FirstRank, on_cpu: PackedLayout
) -> tuple[PackedTransformer, PackedInput]:
    layout = map_tensors(on_cpu, rank.to_cuda)
    num_sequences = len(layout.segments.lengths)
    transformer: Any = rank.transformer(model.make)
    cut = rank.plan.tensor if model.cuts_factors else 1
    packed = PackedInput(
        image=_empty(len(layout.image_at), model.channels),
        text=_empty(len(layout.text_at), model.text_width),
        factors=_empty(num_sequences, transformer.num_factors, model.config.dim // cut),
        layout=layout,
    )
    return transformer, packed


def predicted_bytes(model: StepModel, shapes: Sequence[SequenceShape]) -> int:
    """Return the peak memory of a step that the family predicts."""
    longest = max(shape.tokens for shape in shapes)
    return model.config.step_bytes(Workload(len(shapes), longest, 0, 0, 1), _ITEM_BYTES)


def _counting(step: CountedStep) -> AttentionKernel:
    """Return attention that adds up its operations, which are known by the sequences' lengths alone."""

    def attend(qkv: Tensor, segments: Segments) -> Tensor:
        channels = qkv.shape[2] * qkv.shape[3]
        step.attention_flops += sum(4 * length**2 * channels for length in segments.lengths)
        return varlen_flash(qkv, segments)

    return AttentionKernel("varlen-flash", attend, varlen_flash_across, varlen_flash_causal)


def _transformer(model: StepModel, attention: AttentionKernel) -> PackedTransformer:
    torch.set_default_dtype(torch.bfloat16)
    try:
        with _CUDA:
            return model.make(attention)
    finally:
        torch.set_default_dtype(torch.float32)


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=_CUDA)


_FLUX, _KLEIN, _Z_IMAGE, _QWEN_IMAGE = (
    FluxConfig(),
    Flux2Config(
        num_layers=5,
        num_single_layers=20,
        num_attention_heads=24,
        joint_attention_dim=7_680,
        guidance_embeds=False,
    ),
    ZImageConfig(),
    QwenImageConfig(),
)
FLUX_SCHNELL = StepModel(
    _FLUX,
    partial(FluxTransformer, _FLUX),
    flux_positions.layout_rules(_FLUX.axes_dims_rope),
    channels=64,
    text_width=4_096,
    prompts=(256,),
)
KLEIN_4B = StepModel(
    _KLEIN,
    partial(Flux2Transformer, _KLEIN),
    flux2_positions.layout_rules(_KLEIN.axes_dims_rope, _KLEIN.rope_theta),
    channels=128,
    text_width=7_680,
    prompts=(512,),  # padding is read too
)
Z_IMAGE_TURBO = StepModel(
    _Z_IMAGE,
    partial(ZImageTransformer, _Z_IMAGE),
    z_image_positions.layout_rules(_Z_IMAGE),
    channels=65,  # the last one marks padding
    text_width=_Z_IMAGE.dim,  # refined before
    prompts=(128,),
    cuts_factors=False,
)
Z_IMAGE = replace(Z_IMAGE_TURBO, prompts=(128, 32))
QWEN_IMAGE = StepModel(
    _QWEN_IMAGE,
    partial(QwenImageTransformer, _QWEN_IMAGE),
    qwen_image_positions.layout_rules(_QWEN_IMAGE.axes_dims_rope, _QWEN_IMAGE.zero_cond_t),
    channels=64,
    text_width=3_584,
    prompts=(128, 6),
)
MODELS = {
    "FLUX.1-schnell": FLUX_SCHNELL,
    "FLUX.2-klein-4B": KLEIN_4B,
    "Z-Image-Turbo": Z_IMAGE_TURBO,
    "Z-Image, guided": Z_IMAGE,
    "Qwen-Image, guided": QWEN_IMAGE,
}
"""Models by their names; prompts are of about a hundred words, negative ones short."""

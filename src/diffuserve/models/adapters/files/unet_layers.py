"""Layers of the UNets of Stable Diffusion and of CLIP text encoders by their names in adapter files."""

from collections.abc import Iterator
from typing import Final

from diffuserve.models.adapters.files.layer_table import LayerTable, Targets, one

_LEVELS, _LAYERS = 4, 2
"""Levels and layers of each in published UNets; SDXL has a level less, and numbers the others alike."""

_RESNET: Final = {
    "in_layers.2": "conv1",
    "out_layers.3": "conv2",
    "emb_layers.1": "time_emb_proj",
    "skip_connection": "conv_shortcut",
}
_ATTENTIONS = ("attn1", "attn2")
_PROJECTIONS = ("to_q", "to_k", "to_v", "to_out.0")
_TRANSFORMER = (
    "proj_in",
    "proj_out",
    *(f"transformer_blocks.#.{attn}.{name}" for attn in _ATTENTIONS for name in _PROJECTIONS),
    "transformer_blocks.#.ff.net.0.proj",
    "transformer_blocks.#.ff.net.2",
)
_TOP: Final = {
    "input_blocks.0.0": "conv_in",
    "out.2": "conv_out",
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb.0.0": "add_embedding.linear_1",
    "label_emb.0.2": "add_embedding.linear_2",
}


def _blocks() -> Iterator[tuple[str, str]]:
    """Yield the parts of blocks by the numbers of the authors' layout, and diffusers' names of them.

    Down, each layer is a block, and so is each change of size; up, the last layer of a level has it inside.
    """
    down, up = _LAYERS + 1, _LAYERS + 1
    for number in range(_LEVELS * down):
        level, layer = divmod(number, down)
        kind = ("resnets", "attentions")
        if layer < _LAYERS:
            for place, name in enumerate(kind):
                yield f"input_blocks.{number + 1}.{place}", f"down_blocks.{level}.{name}.{layer}"
    for place, name in enumerate(("resnets.0", "attentions.0", "resnets.1")):
        yield f"middle_block.{place}", f"mid_block.{name}"
    for number in range(_LEVELS * up):
        level, layer = divmod(number, up)
        for place, name in enumerate(("resnets", "attentions")):
            yield f"output_blocks.{number}.{place}", f"up_blocks.{level}.{name}.{layer}"


def _samplers() -> Iterator[tuple[str, str]]:
    each = _LAYERS + 1
    for level in range(_LEVELS):
        yield f"input_blocks.{(level + 1) * each}.0.op", f"down_blocks.{level}.downsamplers.0.conv"
        for place in (1, 2):  # the lowest level of SD 1 has no attention before it
            last = (level + 1) * each - 1
            yield f"output_blocks.{last}.{place}.conv", f"up_blocks.{level}.upsamplers.0.conv"


def _former_names(layer: str) -> Iterator[str]:
    """Yield the names that attention's processors had in diffusers' files before peft."""
    for attn in _ATTENTIONS:
        for name in _PROJECTIONS:
            if layer.endswith(f".{attn}.{name}"):
                block = layer.removesuffix(f".{name}")
                yield f"{block}.processor.{name.removesuffix('.0')}_lora"


def _unet() -> dict[str, Targets]:
    named = {given: one(own) for given, own in (*_TOP.items(), *_samplers())}
    for given, own in _blocks():
        layers = _RESNET if "resnets" in own else {name: name for name in _TRANSFORMER}
        named |= {f"{given}.{short}": one(f"{own}.{name}") for short, name in layers.items()}
    for own in [target.layer for targets in named.values() for target in targets]:
        named |= {name: one(own) for name in _former_names(own)}
    return named


def _clip() -> dict[str, Targets]:
    block = "text_model.encoder.layers.#"
    former = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
    named = {f"{block}.self_attn.{own}": one(f"{block}.self_attn.{own}") for own in former}
    for own, before in former.items():
        named[f"{block}.self_attn.{before}_lora"] = one(f"{block}.self_attn.{own}")
    for name in ("mlp.fc1", "mlp.fc2"):
        named[f"{block}.{name}"] = one(f"{block}.{name}")
    # Encoders without a projection have lost the module's name in newer versions of transformers.
    short = {name.removeprefix("text_model."): targets for name, targets in named.items()}
    return named | short | {"text_projection": one("text_projection")}


UNET: Final = LayerTable(_unet())
CLIP: Final = LayerTable(_clip())

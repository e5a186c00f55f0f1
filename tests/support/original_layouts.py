"""Weights in the layouts of their authors, made of modules of diffusers and transformers.

The maps are written from the authors' own code, the other way round than the converters under test.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Layout = Callable[[Tensors], Tensors]


def read_part(folder: Path, component: str) -> Tensors:
    """Return the tensors of a component of a folder in diffusers' format."""
    return {
        name: tensor
        for file in sorted((folder / component).glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def write_original(
    path: Path,
    folder: Path,
    parts: Mapping[str, tuple[str, Layout]],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write components of a folder in one file; `parts` has the prefix and the layout of each."""
    tensors: Tensors = {}
    for component, (prefix, layout) in parts.items():
        part = layout(read_part(folder, component))
        tensors |= {f"{prefix}{name}": tensor.contiguous().clone() for name, tensor in part.items()}
    save_file(tensors, path, metadata=dict(metadata or {}))
    return path


def _renamed(tensors: Tensors, rules: Sequence[tuple[str, str]]) -> Tensors:
    def rename(name: str) -> str:
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return name

    return {rename(name): tensor for name, tensor in tensors.items()}


_RESNET = (
    (r"\.norm1\.", ".in_layers.0."),
    (r"\.conv1\.", ".in_layers.2."),
    (r"\.time_emb_proj\.", ".emb_layers.1."),
    (r"\.norm2\.", ".out_layers.0."),
    (r"\.conv2\.", ".out_layers.3."),
    (r"\.conv_shortcut\.", ".skip_connection."),
)
_UNET_ENDS = (
    (r"^time_embedding\.linear_1\.", "time_embed.0."),
    (r"^time_embedding\.linear_2\.", "time_embed.2."),
    (r"^add_embedding\.linear_1\.", "label_emb.0.0."),
    (r"^add_embedding\.linear_2\.", "label_emb.0.2."),
    (r"^conv_in\.", "input_blocks.0.0."),
    (r"^conv_norm_out\.", "out.0."),
    (r"^conv_out\.", "out.2."),
)


def unet_layout(layers_per_block: int = 1) -> Layout:
    """Return the layout of a UNet in the authors' code of latent diffusion, by the resnets of a block."""

    def rename(name: str) -> str:
        parts = name.split(".")
        side, kind = parts[0], parts[1] if len(parts) > 1 else ""
        if side == "mid_block":
            place = 2 * int(parts[2]) if kind == "resnets" else 1
            return _inner(f"middle_block.{place}", parts[3:], kind)
        if side not in ("down_blocks", "up_blocks"):
            return next(
                (re.sub(pattern, to, name) for pattern, to in _UNET_ENDS if re.search(pattern, name)), name
            )
        block, layer, index = int(parts[1]), parts[2], int(parts[3])
        width = layers_per_block + 1
        if layer == "downsamplers":
            return f"input_blocks.{(block + 1) * width}.0.op.{parts[-1]}"
        if layer == "upsamplers":
            return f"output_blocks.{block * width + layers_per_block}.UP.conv.{parts[-1]}"
        base = 1 + block * width + index if side == "down_blocks" else block * width + index
        blocks = "input_blocks" if side == "down_blocks" else "output_blocks"
        return _inner(f"{blocks}.{base}.{0 if layer == 'resnets' else 1}", parts[4:], layer)

    def layout(tensors: Tensors) -> Tensors:
        named = {rename(name): tensor for name, tensor in tensors.items()}
        attended = {match[1] for name in named if (match := re.match(r"(output_blocks\.\d+)\.1\.", name))}
        return {
            name.replace(".UP.", ".2." if name.partition(".UP.")[0] in attended else ".1."): tensor
            for name, tensor in named.items()
        }

    return layout


def _inner(place: str, rest: Sequence[str], layer: str) -> str:
    name = f"{place}.{'.'.join(rest)}"
    if layer == "resnets":
        for pattern, replacement in _RESNET:
            name = re.sub(pattern, replacement, name)
    return name


def image_vae_layout(tensors: Tensors) -> Tensors:
    """Return the layout of a VAE in the authors' code of latent diffusion, also FLUX.1's."""
    num_blocks = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("decoder.up_blocks."))
    mid = tensors  # attention has 1×1 convolutions there
    found = {
        name: tensor[:, :, None, None] if re.search(r"attentions.*to_.*weight$", name) else tensor
        for name, tensor in mid.items()
    }

    def up(match: re.Match[str]) -> str:
        return f"decoder.up.{num_blocks - 1 - int(match[1])}."

    named = {re.sub(r"decoder\.up_blocks\.(\d+)\.", up, name): tensor for name, tensor in found.items()}
    return _renamed(
        named,
        (
            (r"encoder\.down_blocks\.", "encoder.down."),
            (r"mid_block\.resnets\.0\.", "mid.block_1."),
            (r"mid_block\.resnets\.1\.", "mid.block_2."),
            (r"mid_block\.attentions\.0\.group_norm\.", "mid.attn_1.norm."),
            (r"mid_block\.attentions\.0\.to_out\.0\.", "mid.attn_1.proj_out."),
            (r"mid_block\.attentions\.0\.to_([qkv])\.", r"mid.attn_1.\1."),
            (r"\.resnets\.", ".block."),
            (r"\.(down|up)samplers\.0\.", r".\1sample."),
            (r"\.conv_shortcut\.", ".nin_shortcut."),
            (r"\.conv_norm_out\.", ".norm_out."),
        ),
    )


def clip_layout(tensors: Tensors) -> Tensors:
    """Return CLIP's text encoder as transformers has always named it."""
    return {f"text_model.{name.removeprefix('text_model.')}": tensor for name, tensor in tensors.items()}


def open_clip_layout(tensors: Tensors) -> Tensors:
    """Return OpenCLIP's text encoder: one matrix for queries, keys and values, a transposed projection."""
    left = dict(tensors)
    result: Tensors = {"text_projection": left.pop("text_projection.weight").T}
    for name in [name for name in left if ".q_proj." in name]:
        place, ending = name.split("self_attn.q_proj.")
        joined = [left.pop(f"{place}self_attn.{part}_proj.{ending}") for part in "qkv"]
        result[f"{place}attn.in_proj_{ending}"] = torch.cat(joined)
    result |= left
    return _renamed(
        result,
        (
            (r"^text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
            (r"^text_model\.embeddings\.", ""),
            (r"^text_model\.final_layer_norm\.", "ln_final."),
            (r"^text_model\.encoder\.layers\.", "transformer.resblocks."),
            (r"self_attn\.out_proj", "attn.out_proj"),
            (r"layer_norm([12])", r"ln_\1"),
            (r"mlp\.fc1", "mlp.c_fc"),
            (r"mlp\.fc2", "mlp.c_proj"),
        ),
    )


def t5_layout(tensors: Tensors) -> Tensors:
    """Return T5's encoder, which all name alike."""
    return tensors


_FLUX_DOUBLE = {
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
}
_FLUX_SINGLE = {
    "norm.linear": "modulation.lin",
    "attn.norm_q": "norm.query_norm",
    "attn.norm_k": "norm.key_norm",
    "proj_out": "linear2",
}
_FLUX_ENDS = {
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "context_embedder": "txt_in",
    "x_embedder": "img_in",
    "proj_out": "final_layer.linear",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
}


def flux_layout(tensors: Tensors) -> Tensors:
    """Return FLUX.1's transformer as Black Forest Labs wrote it."""
    left, result = dict(tensors), Tensors()
    for name in sorted(left):
        block = re.match(r"((?:single_)?transformer_blocks)\.(\d+)\.(.*)\.(weight|bias)$", name)
        if block is None:
            layer, _, ending = name.rpartition(".")
            tensor = left[name]
            if layer == "norm_out.linear":
                scale, shift = tensor.chunk(2)
                tensor = torch.cat([shift, scale])
            result[f"{_FLUX_ENDS[layer]}.{ending}"] = tensor
            continue
        is_single, place, layer, ending = block[1].startswith("single"), block[2], block[3], block[4]
        own = f"{'single' if is_single else 'double'}_blocks.{place}."
        names = _FLUX_SINGLE if is_single else _FLUX_DOUBLE
        if layer in names:
            last = "scale" if ".norm" in f".{names[layer]}" and "_norm" in names[layer] else ending
            result[f"{own}{names[layer]}.{last}"] = left[name]
        elif layer in ("attn.to_q", "attn.add_q_proj"):
            start = name.rpartition(f".{layer}.")[0]
            wanted = [layer.replace("_q", f"_{part}") for part in "qkv"] + ["proj_mlp"] * is_single
            joined = torch.cat([left[f"{start}.{part}.{ending}"] for part in wanted])
            stream = "img_attn" if layer == "attn.to_q" else "txt_attn"
            result[f"{own}linear1.{ending}" if is_single else f"{own}{stream}.qkv.{ending}"] = joined
    return result


def wan_layout(tensors: Tensors) -> Tensors:
    """Return Wan's transformer as its authors wrote it."""
    swapped = _renamed(tensors, ((r"\.norm2\.", ".NORM3."), (r"\.norm3\.", ".norm2."), (r"NORM3", "norm3")))
    return _renamed(
        swapped,
        (
            (r"^condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
            (r"^condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
            (r"^condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
            (r"^condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
            (r"^condition_embedder\.time_proj", "time_projection.1"),
            (r"^condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"),
            (r"^condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
            (r"^condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
            (r"^condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
            (r"^scale_shift_table", "head.modulation"),
            (r"^proj_out", "head.head"),
            (r"scale_shift_table", "modulation"),
            (r"attn1\.", "self_attn."),
            (r"attn2\.", "cross_attn."),
            (r"\.to_out\.0\.", ".o."),
            (r"\.to_([qkv])\.", r".\1."),
            (r"\.add_([kv])_proj\.", r".\1_img."),
            (r"\.norm_added_k\.", ".norm_k_img."),
            (r"ffn\.net\.0\.proj", "ffn.0"),
            (r"ffn\.net\.2", "ffn.2"),
        ),
    )


def z_image_layout(tensors: Tensors) -> Tensors:
    """Return Z-Image's transformer as its authors wrote it."""
    left, result = dict(tensors), Tensors()
    for name in [name for name in left if name.endswith(".attention.to_q.weight")]:
        start = name.removesuffix("to_q.weight")
        result[f"{start}qkv.weight"] = torch.cat([left.pop(f"{start}to_{part}.weight") for part in "qkv"])
    return _renamed(
        result | left,
        (
            (r"^all_final_layer\.2-1\.", "final_layer."),
            (r"^all_x_embedder\.2-1\.", "x_embedder."),
            (r"\.attention\.to_out\.0\.", ".attention.out."),
            (r"\.attention\.norm_([qk])\.", r".attention.\1_norm."),
        ),
    )


def wan_vae_layout(tensors: Tensors) -> Tensors:
    """Return the VAE of Wan 2.1 as its authors wrote it: a flat list of what halves and doubles sizes."""

    def flat(match: re.Match[str]) -> str:
        block, kind, index = int(match[1]), match[2], int(match[3])
        return f"decoder.upsamples.{4 * block + (index if kind == 'resnets' else 3)}."

    named = {
        re.sub(r"decoder\.up_blocks\.(\d+)\.(resnets|upsamplers)\.(\d+)\.", flat, name): tensor
        for name, tensor in tensors.items()
    }
    return _renamed(
        named,
        (
            (r"^quant_conv\.", "conv1."),
            (r"^post_quant_conv\.", "conv2."),
            (r"coder\.conv_in\.", "coder.conv1."),
            (r"coder\.norm_out\.", "coder.head.0."),
            (r"coder\.conv_out\.", "coder.head.2."),
            (r"coder\.mid_block\.attentions\.0\.", "coder.middle.1."),
            (r"coder\.mid_block\.resnets\.0\.", "coder.middle.0."),
            (r"coder\.mid_block\.resnets\.1\.", "coder.middle.2."),
            (r"encoder\.down_blocks\.", "encoder.downsamples."),
            (r"\.norm1\.gamma", ".residual.0.gamma"),
            (r"((?:samples|middle)\.\d+)\.conv1\.", r"\1.residual.2."),
            (r"\.norm2\.gamma", ".residual.3.gamma"),
            (r"((?:samples|middle)\.\d+)\.conv2\.", r"\1.residual.6."),
            (r"\.conv_shortcut\.", ".shortcut."),
        ),
    )

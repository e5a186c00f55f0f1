"""Layers of transformers by their names in the authors' layouts, and in those of trainers.

The pairs of names are those that the checkpoints' own conversion has (`single_file_utils` of diffusers).
"""

from typing import Final

from diffuserve.models.adapters.files.layer_table import LayerTable, Targets, halves_swapped, one, shared

_IMAGE, _TEXT = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")


def _attention(block: str, names: tuple[str, ...]) -> Targets:
    return shared(*(f"{block}.attn.{name}" for name in names))


def _mlp_embedder(original: str, layer: str) -> dict[str, Targets]:
    return {
        f"{original}.in_layer": one(f"{layer}.linear_1"),
        f"{original}.out_layer": one(f"{layer}.linear_2"),
    }


def _flux_double(double: str = "double_blocks.#", block: str = "transformer_blocks.#") -> dict[str, Targets]:
    return {
        f"{double}.img_attn.qkv": _attention(block, _IMAGE),
        f"{double}.txt_attn.qkv": _attention(block, _TEXT),
        f"{double}.img_attn.proj": one(f"{block}.attn.to_out.0"),
        f"{double}.txt_attn.proj": one(f"{block}.attn.to_add_out"),
    }


def _flux_xlabs() -> dict[str, Targets]:
    double, single = "double_blocks.#.processor", "single_blocks.#.processor"
    block, lone = "transformer_blocks.#", "single_transformer_blocks.#"
    return {
        f"{double}.qkv_lora1": _attention(block, _IMAGE),
        f"{double}.qkv_lora2": _attention(block, _TEXT),
        f"{double}.proj_lora1": one(f"{block}.attn.to_out.0"),
        f"{double}.proj_lora2": one(f"{block}.attn.to_add_out"),
        f"{single}.qkv_lora": _attention(lone, _IMAGE),
        f"{single}.proj_lora": one(f"{lone}.proj_out"),
    }


def _flux() -> dict[str, Targets]:
    double, single = "double_blocks.#", "single_blocks.#"
    block, lone = "transformer_blocks.#", "single_transformer_blocks.#"
    queries = (f"{lone}.attn.{name}" for name in _IMAGE)
    return {
        **_flux_double(),
        f"{double}.img_mlp.0": one(f"{block}.ff.net.0.proj"),
        f"{double}.img_mlp.2": one(f"{block}.ff.net.2"),
        f"{double}.txt_mlp.0": one(f"{block}.ff_context.net.0.proj"),
        f"{double}.txt_mlp.2": one(f"{block}.ff_context.net.2"),
        f"{double}.img_mod.lin": one(f"{block}.norm1.linear"),
        f"{double}.txt_mod.lin": one(f"{block}.norm1_context.linear"),
        f"{single}.linear1": shared(*queries, f"{lone}.proj_mlp", shares=(1, 1, 1, 4)),
        f"{single}.linear2": one(f"{lone}.proj_out"),
        f"{single}.modulation.lin": one(f"{lone}.norm.linear"),
        "img_in": one("x_embedder"),
        "txt_in": one("context_embedder"),
        **_mlp_embedder("time_in", "time_text_embed.timestep_embedder"),
        **_mlp_embedder("vector_in", "time_text_embed.text_embedder"),
        **_mlp_embedder("guidance_in", "time_text_embed.guidance_embedder"),
        "final_layer.linear": one("proj_out"),
        "final_layer.adaLN_modulation.1": halves_swapped("norm_out.linear"),
        **_flux_xlabs(),
    }


def _flux2() -> dict[str, Targets]:
    double, single = "double_blocks.#", "single_blocks.#"
    block, lone = "transformer_blocks.#", "single_transformer_blocks.#"
    modulations = (
        "single_stream_modulation",
        "double_stream_modulation_img",
        "double_stream_modulation_txt",
    )
    return {
        **_flux_double(),
        f"{double}.img_mlp.0": one(f"{block}.ff.linear_in"),
        f"{double}.img_mlp.2": one(f"{block}.ff.linear_out"),
        f"{double}.txt_mlp.0": one(f"{block}.ff_context.linear_in"),
        f"{double}.txt_mlp.2": one(f"{block}.ff_context.linear_out"),
        f"{single}.linear1": one(f"{lone}.attn.to_qkv_mlp_proj"),
        f"{single}.linear2": one(f"{lone}.attn.to_out"),
        "img_in": one("x_embedder"),
        "txt_in": one("context_embedder"),
        **_mlp_embedder("time_in", "time_guidance_embed.timestep_embedder"),
        **_mlp_embedder("guidance_in", "time_guidance_embed.guidance_embedder"),
        "final_layer.linear": one("proj_out"),
        "final_layer.adaLN_modulation.1": halves_swapped("norm_out.linear"),
        **{f"{name}.lin": one(f"{name}.linear") for name in modulations},
    }


def _z_image_block(block: str) -> dict[str, Targets]:
    attention, forward = f"{block}.attention", f"{block}.feed_forward"
    return {
        f"{attention}.qkv": shared(*(f"{attention}.{name}" for name in _IMAGE)),
        f"{attention}.out": one(f"{attention}.to_out.0"),
        **{f"{forward}.{name}": one(f"{forward}.{name}") for name in ("w1", "w2", "w3")},
        f"{block}.adaLN_modulation.0": one(f"{block}.adaLN_modulation.0"),
    }


def _z_image() -> dict[str, Targets]:
    final = "all_final_layer.2-1"
    same = ("cap_embedder.1", "t_embedder.mlp.0", "t_embedder.mlp.2")
    return {
        **_z_image_block("layers.#"),
        **_z_image_block("noise_refiner.#"),
        **_z_image_block("context_refiner.#"),
        **{name: one(name) for name in same},
        "x_embedder": one("all_x_embedder.2-1"),
        "final_layer.linear": one(f"{final}.linear"),
        "final_layer.adaLN_modulation.1": one(f"{final}.adaLN_modulation.1"),
    }


def _qwen_image() -> dict[str, Targets]:
    block, times = "transformer_blocks.#", "time_text_embed.timestep_embedder"
    of_block = [f"attn.{name}" for name in (*_IMAGE, *_TEXT, "to_out.0", "to_add_out")]
    for stream in ("img", "txt"):
        of_block += [f"{stream}_mod.1", f"{stream}_mlp.net.0.proj", f"{stream}_mlp.net.2"]
    names = [f"{block}.{name}" for name in of_block]
    names += ["img_in", "txt_in", "proj_out", "norm_out.linear", f"{times}.linear_1", f"{times}.linear_2"]
    return {name: one(name) for name in names}


def _wan() -> dict[str, Targets]:
    named = {f"blocks.#.ffn.{given}": one(f"blocks.#.ffn.{own}") for given, own in _WAN_FORWARD.items()}
    for given, own in {"self_attn": "attn1", "cross_attn": "attn2"}.items():
        for short, name in _WAN_ATTENTION.items():
            named[f"blocks.#.{given}.{short}"] = one(f"blocks.#.{own}.{name}")
    for short, name in {"k_img": "add_k_proj", "v_img": "add_v_proj"}.items():
        named[f"blocks.#.cross_attn.{short}"] = one(f"blocks.#.attn2.{name}")
    condition = "condition_embedder"
    return named | {
        "time_projection.1": one(f"{condition}.time_proj"),
        "head.head": one("proj_out"),
        "text_embedding.0": one(f"{condition}.text_embedder.linear_1"),
        "text_embedding.2": one(f"{condition}.text_embedder.linear_2"),
        "time_embedding.0": one(f"{condition}.time_embedder.linear_1"),
        "time_embedding.2": one(f"{condition}.time_embedder.linear_2"),
        "img_emb.proj.1": one(f"{condition}.image_embedder.ff.net.0.proj"),
        "img_emb.proj.3": one(f"{condition}.image_embedder.ff.net.2"),
    }


_WAN_ATTENTION: Final = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_WAN_FORWARD: Final = {"0": "net.0.proj", "2": "net.2"}

FLUX: Final = LayerTable(_flux())
FLUX2: Final = LayerTable(_flux2())
Z_IMAGE: Final = LayerTable(_z_image())
QWEN_IMAGE: Final = LayerTable(_qwen_image())
WAN: Final = LayerTable(_wan())

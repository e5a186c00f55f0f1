"""Small FLUX.1 checkpoints with random weights, in diffusers' format.

The images show noise, but every tensor of the architecture takes part in them: they change with
the prompt, the seed, the size, the steps and (for `dev`) the guidance. So two implementations that
agree on such a folder agree on the architecture, and no test needs gigabytes.
"""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffuserve.domain.extras import Extra
from diffuserve.models.bundled import bundled_models

_HEADS, _HEAD_DIM, _ROPE_AXES = 4, 16, (4, 6, 6)
_TEXT_DIM, _POOLED_DIM = 32, 24
_LATENT_CHANNELS = 16
_MASK_CHANNELS = 16 * 16  # the pixels of a token
_WEIGHT_GAIN, _BIAS_SPREAD, _NORM_SPREAD = 1.0, 0.1, 0.2
_READABLE = 0o644  # save_pretrained leaves weights that only their owner may read


FluxKind = Literal["schnell", "dev", "kontext", "fill"]
_CLASSES = {"kontext": "FluxKontextPipeline", "fill": "FluxFillPipeline"}


def write_flux_checkpoint(  # noqa: PLR0913 (a checkpoint has that many options)
    folder: Path,
    *,
    kind: FluxKind = "schnell",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    num_files: int = 1,
    use_dynamic_shifting: bool | None = None,
    shift: float | None = None,
    transformer: Mapping[str, Any] | None = None,
    text_encoder_2: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random FLUX.1 checkpoint into `folder` and return it.

    All kinds but `schnell` have embedded guidance and a schedule that shifts with the size; `kontext` edits
    references, and `fill` reads a masked image. `use_dynamic_shifting` and `shift` override the kind's own
    schedule, and the values of `transformer` and `text_encoder_2` those of their configs. With `num_files`
    above 1 the transformer and the T5 encoder are split into at least that many files with an index. The
    tokenizers are those of the bundled tiny-flux, with its vocabulary. Equal arguments write equal weights.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    is_dev = kind != "schnell"
    values = transformer or {}
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        components = {
            "transformer": _transformer(guidance_embeds=is_dev, fills_in=kind == "fill", **values),
            "vae": autoencoder(),
            "text_encoder": _clip(),
            "text_encoder_2": _t5(**text_encoder_2 or {}),
        }
    generator = torch.Generator().manual_seed(seed)
    for name, module in components.items():
        redraw_weights(module, generator)
        nn.Module.to(module, dtype)  # diffusers' own `to` warns about modules kept in float32: none here
        save_module(module, folder / name, num_files if name in ("transformer", "text_encoder_2") else 1)
    _save_scheduler(
        folder / "scheduler",
        shift=(3.0 if is_dev else 1.0) if shift is None else shift,
        use_dynamic_shifting=is_dev if use_dynamic_shifting is None else use_dynamic_shifting,
    )
    _copy_tokenizers(folder)
    _write_index(folder, _CLASSES.get(kind, "FluxPipeline"))
    return folder


def require_libraries() -> None:
    """Raise `ImportError` with the remedy unless diffusers and transformers are installed."""
    try:
        import diffusers  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        message = f"{error.name} is not installed; {Extra.DIFFUSERS.remedy}"
        raise ImportError(message, name=error.name) from error


def redraw_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Randomise every parameter: zeros and ones would hide a mistake."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(_draw(name, parameter, generator))


def _draw(name: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.ndim >= 2:
        fan_in = parameter[0].numel()
        return noise * (_WEIGHT_GAIN / math.sqrt(fan_in))
    if "norm" in name and name.endswith("weight"):
        return 1 + noise * _NORM_SPREAD
    return noise * _BIAS_SPREAD


def _transformer(guidance_embeds: bool, fills_in: bool, **values: Any) -> nn.Module:
    from diffusers import FluxTransformer2DModel

    channels = 4 * _LATENT_CHANNELS
    config: dict[str, Any] = {
        "in_channels": 2 * channels + _MASK_CHANNELS if fills_in else channels,
        "out_channels": channels,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": _HEAD_DIM,
        "num_attention_heads": _HEADS,
        "joint_attention_dim": _TEXT_DIM,
        "pooled_projection_dim": _POOLED_DIM,
        "guidance_embeds": guidance_embeds,
        "axes_dims_rope": _ROPE_AXES,
    }
    return as_module(FluxTransformer2DModel(**config | values))


def autoencoder() -> nn.Module:
    """Return a small autoencoder with FLUX.1's latents, which other families share."""
    from diffusers import AutoencoderKL

    return as_module(
        AutoencoderKL(
            block_out_channels=(8, 8, 16, 16),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            latent_channels=_LATENT_CHANNELS,
            norm_num_groups=4,
            sample_size=64,
            scaling_factor=0.3611,
            shift_factor=0.1159,
            use_quant_conv=False,
            use_post_quant_conv=False,
            force_upcast=False,
        )
    )


def _clip() -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    tokens = bundled_config("text_encoder", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    config = CLIPTextConfig(
        hidden_size=_POOLED_DIM,
        projection_dim=_POOLED_DIM,
        intermediate_size=2 * _POOLED_DIM,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        **tokens,
    )
    return as_module(CLIPTextModel(config))


def _t5(**values: Any) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    config: dict[str, Any] = {
        "d_model": _TEXT_DIM,
        "d_kv": 8,
        "d_ff": 2 * _TEXT_DIM,
        "num_layers": 1,
        "num_heads": 2,
        "feed_forward_proj": "gated-gelu",
        **bundled_config("text_encoder_2", "vocab_size", "eos_token_id", "pad_token_id"),
    }
    return as_module(T5EncoderModel(T5Config(**config | values)))


def as_module(model: Any) -> nn.Module:
    """Return a model of another library as the module that it is, ready for inference."""
    assert isinstance(model, nn.Module)
    return model.eval()


def bundled_config(component: str, *names: str) -> dict[str, Any]:
    """Return the values that a tokenizer fixes in its encoder's config."""
    config = json.loads((bundled_models()["tiny-flux"] / component / "config.json").read_text("utf-8"))
    return {name: config[name] for name in names}


def save_module(model: Any, folder: Path, num_files: int = 1) -> None:
    """Save a model in at least `num_files` files, readable for all."""
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(folder, safe_serialization=True, max_shard_size=num_bytes // num_files)
    for file in folder.iterdir():
        file.chmod(_READABLE)


def _save_scheduler(folder: Path, shift: float, use_dynamic_shifting: bool) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    FlowMatchEulerDiscreteScheduler(
        shift=shift,
        use_dynamic_shifting=use_dynamic_shifting,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    ).save_pretrained(folder)


def _copy_tokenizers(folder: Path) -> None:
    """Copy the bundled model's tokenizers."""
    bundled = bundled_models()["tiny-flux"]
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(bundled / name, folder / name, dirs_exist_ok=True)


def _write_index(folder: Path, class_name: str) -> None:
    """Write the bundled model's index, which names the same classes of components, for another pipeline."""
    index = json.loads((bundled_models()["tiny-flux"] / "model_index.json").read_text("utf-8"))
    present = {name: value for name, value in index.items() if value != [None, None]}
    text = json.dumps(present | {"_class_name": class_name}, indent=2)
    (folder / "model_index.json").write_text(text + "\n", "utf-8")

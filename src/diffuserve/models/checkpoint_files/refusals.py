"""Files of weights that are no model by themselves, or in numbers that are not read: told by their tensors.

Each is refused by its own name, with what to do instead. Importing this loads no torch.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile

_AS_PUBLISHED = (
    "take the model as it was published, or in fp8 or GGUF; `--quantization int8`, `fp8` or `int4` makes it "
    "small when it is loaded"
)
_INVERSIONS = ("emb_params", "clip_l", "clip_g")


@dataclass(frozen=True)
class _Refusal:
    """What a file is, what to do instead, and how it is told."""

    what: str
    remedy: str
    fits: Callable[[CheckpointFile], bool]


def find_refusal(file: CheckpointFile) -> str | None:
    """Return why a file is no model that can be imported; `None` if nothing speaks against it."""
    found = next((refusal for refusal in _REFUSALS if refusal.fits(file)), None)
    return None if found is None else f"{file.path}: {found.what}; {found.remedy}"


def _ends(*endings: str) -> Callable[[CheckpointFile], bool]:
    return lambda file: any(name.endswith(endings) for name in file.tensors)


def _begins(*starts: str) -> Callable[[CheckpointFile], bool]:
    return lambda file: any(name.startswith(starts) for name in file.tensors)


def _has_all(*names: str) -> Callable[[CheckpointFile], bool]:
    return lambda file: all(name in file.tensors for name in names)


def _holds(*words: str) -> Callable[[CheckpointFile], bool]:
    return lambda file: any(word in name for name in file.tensors for word in words)


def _any(tests: Iterable[Callable[[CheckpointFile], bool]]) -> Callable[[CheckpointFile], bool]:
    chosen = tuple(tests)
    return lambda file: any(test(file) for test in chosen)


def _is_nunchaku(file: CheckpointFile) -> bool:
    said = file.metadata.get("model_class", "").lower()
    return "nunchaku" in said or _ends(".smooth_factor", ".smooth", ".wscales", ".smooth_orig")(file)


def _is_nvfp4(file: CheckpointFile) -> bool:
    said = " ".join(file.metadata.values()).lower()
    return "nvfp4" in said or any(
        info.stored_as == "F4" or f"{name}_scale_2" in file.tensors for name, info in file.tensors.items()
    )


_REFUSALS = (
    _Refusal("weights of SVDQuant (Nunchaku), for its own kernels", _AS_PUBLISHED, _is_nunchaku),
    _Refusal("weights in NVFP4, for kernels of Blackwell GPUs", _AS_PUBLISHED, _is_nvfp4),
    _Refusal(
        "weights that bitsandbytes has quantized (NF4)",
        _AS_PUBLISHED,
        _holds(".quant_state.bitsandbytes", ".absmax"),
    ),
    _Refusal("weights that GPTQ or AWQ has quantized", _AS_PUBLISHED, _ends(".qweight", ".qzeros")),
    _Refusal(
        "a LoRA, which changes another model",
        "give it to `generate` by --adapter or `serve` by --adapter-files, or import a model that has it",
        _any(
            (
                _holds(".lora_up.", ".lora_down.", ".lora_A.", ".lora_B.", ".lora.up.", "_lora."),
                _holds(".hada_w1_", ".lokr_w", ".oft_blocks", ".lora_mid."),
                _begins("lora_unet_", "lora_te", "lycoris_"),
            )
        ),
    ),
    _Refusal(
        "a ControlNet, which steers another model",
        "put it into that model's folder in diffusers' format, with a ControlNet pipeline",
        _any(
            (
                _begins("control_model.", "controlnet_", "input_hint_block.", "control_layers."),
                _begins("controlnet_blocks.", "control_all_x_embedder", "pos_embed_input."),
                _holds("controlnet_cond_embedding."),
            )
        ),
    ),
    _Refusal(
        "an IP-Adapter, which gives another model pictures",
        "it is not read",
        _begins("image_proj.", "ip_adapter."),
    ),
    _Refusal("a motion module of AnimateDiff", "it is not read", _holds(".motion_modules.")),
    _Refusal(
        "a textual inversion, words for another model's text encoder",
        "it is not read",
        lambda file: (
            len(file.tensors) <= 2 and bool({"emb_params", "clip_l", "clip_g"} & file.tensors.keys())
        ),
    ),
    _Refusal(
        "an upscaler",
        "upscalers of pixels are not read",
        _any((_has_all("conv_first.weight", "conv_last.weight"), _begins("model.0.weight"))),
    ),
)

"""Recognizes a model in a file by the names and shapes of its tensors. Importing this loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.checkpoint_files.kinds import KINDS, ModelKind, PartLayout, Tensors
from diffuserve.models.checkpoint_files.refusals import find_refusal

_MAX_SHOWN = 3
_IN_DIFFUSERS = "in diffusers' own layout, a part of a folder: give --model that folder"


@dataclass(frozen=True)
class RecognizedFile:
    """A file of a known model. `prefixes` are those of the components that it holds, the denoiser first."""

    file: CheckpointFile
    kind: ModelKind
    prefixes: Mapping[str, str]

    @property
    def lacks(self) -> list[str]:
        """The components with weights that have to come from elsewhere, as far as the kind knows them."""
        return [name for name in self.kind.parts if name not in self.prefixes]


def recognize(file: CheckpointFile) -> RecognizedFile:
    """Return what model a file holds, and which parts. Raise `InvalidModel` for all else, by its name."""
    if (refusal := find_refusal(file)) is not None:
        raise InvalidModel(refusal)
    kind = KINDS[_kind_of(file)]
    prefixes = {
        name: prefix
        for name, part in kind.parts.items()
        if name != "transformer_2" and (prefix := part.prefix_in(file.tensors)) is not None
    }
    return RecognizedFile(file, kind, prefixes)


def part_prefix(file: CheckpointFile, component: str, part: PartLayout) -> str:
    """Return the prefix of a component's tensors in a file of its own. Raise `InvalidModel` without one."""
    prefix = part.prefix_in(file.tensors)
    if prefix is None:
        raise InvalidModel(
            f"{file.path}: has no {part.title} for {component}: {part.marks[0]} is missing; it begins with "
            f"{_first_names(file)}"
        )
    return prefix


def _kind_of(file: CheckpointFile) -> str:
    """Return the name of the kind of model. Raise `InvalidModel` for what is known and not imported."""
    names = {name.removeprefix("model.diffusion_model."): info for name, info in file.tensors.items()}
    if "double_blocks.0.img_attn.qkv.weight" in names:
        return _flux(file, names)
    if "input_blocks.0.0.weight" in names:
        return _stable_diffusion(file, names)
    if "head.modulation" in names and "patch_embedding.weight" in names:
        return _wan(file, names)
    if "layers.0.adaLN_modulation.0.weight" in names and "cap_embedder.0.weight" in names:
        return "z-image-turbo" if _says(file, "turbo") else "z-image"
    if "transformer_blocks.0.img_mod.1.weight" in names and "txt_norm.weight" in names:
        return "qwen-image-edit" if _says(file, "edit") else "qwen-image"
    raise InvalidModel(f"{file.path}: {_explain_other(file)}")


def _flux(file: CheckpointFile, names: Tensors) -> str:
    if any(name.startswith("distilled_guidance_layer.") for name in names):
        raise _as_folder(file, "Chroma", "lodestones/Chroma1-HD")
    if "single_stream_modulation.lin.weight" in names:
        raise _as_folder(file, "FLUX.2", "flux2-klein")
    if "img_in.weight" not in names or "final_layer.linear.weight" not in names:
        raise InvalidModel(f"{file.path}: a part of FLUX.1 whose img_in or final_layer is missing")
    channels, outputs = _columns(names, "img_in.weight"), _rows(names, "final_layer.linear.weight")
    if channels == outputs:
        if "guidance_in.in_layer.weight" not in names:
            return "flux-schnell"
        return "flux-kontext" if _says(file, "kontext") else "flux-dev"
    if channels == 2 * outputs:
        raise InvalidModel(f"{file.path}: FLUX.1 Canny or Depth, which draws by control images; not imported")
    return "flux-fill"


def _stable_diffusion(file: CheckpointFile, names: Tensors) -> str:
    if "edm_mean" in names:
        raise _as_folder(file, "Playground v2.5", "playgroundai/playground-v2.5-1024px-aesthetic")
    if _is_refiner(names):
        raise InvalidModel(
            f"{file.path}: the refiner of Stable Diffusion XL, which draws no images by itself; serve its "
            "folder: --model stabilityai/stable-diffusion-xl-refiner-1.0"
        )
    if any(name.startswith("cond_stage_model.model.") for name in names):
        raise _as_folder(file, "Stable Diffusion 2", "stabilityai/stable-diffusion-2-1")
    kind = "sdxl" if "label_emb.0.0.weight" in names else "sd-1.5"
    channels = _columns(names, "input_blocks.0.0.weight")
    if channels == _INPAINT_CHANNELS:
        return f"{kind}-inpaint"
    if channels == _PIX2PIX_CHANNELS:
        raise _as_folder(file, "InstructPix2Pix", "timbrooks/instruct-pix2pix")
    return kind


_INPAINT_CHANNELS, _PIX2PIX_CHANNELS = 9, 8
_REFINER_INPUTS = 2560


def _is_refiner(names: Tensors) -> bool:
    if "conditioner.embedders.0.model.transformer.resblocks.0.ln_1.weight" in names:
        return True
    return "label_emb.0.0.weight" in names and _columns(names, "label_emb.0.0.weight") == _REFINER_INPUTS


def _wan(file: CheckpointFile, names: Tensors) -> str:
    for word, title in _OTHER_WANS.items():
        if any(name.startswith(word) for name in names):
            raise _as_folder(file, title, f"Wan-AI/{title.replace(' ', '')}-Diffusers")
    channels, outputs = _columns(names, "patch_embedding.weight"), _rows(names, "head.head.weight") // 4
    is_expert = _says(file, "high_noise") or _says(file, "low_noise")
    has_images = any(name.startswith("img_emb.") for name in names)
    if channels > outputs:
        return "wan-2.1-i2v-14b" if has_images else "wan-2.2-i2v-a14b"
    if channels >= _TI2V_CHANNELS:
        return "wan-2.2-ti2v-5b"
    if is_expert:
        return "wan-2.2-t2v-a14b"
    is_small = _rows(names, "patch_embedding.weight") <= _SMALL_WIDTH
    return "wan-2.1-t2v-1.3b" if is_small else "wan-2.1-t2v-14b"


_TI2V_CHANNELS, _SMALL_WIDTH = 48, 1536
_OTHER_WANS = {
    "vace_": "Wan 2.1 VACE 14B",
    "motion_encoder.": "Wan 2.2 Animate 14B",
    "control_adapter.": "Wan 2.2 Fun",
    "casual_audio_encoder.": "Wan 2.2 S2V 14B",
}


def _as_folder(file: CheckpointFile, title: str, model: str) -> InvalidModel:
    return InvalidModel(
        f"{file.path}: {title}, whose files are not imported; its folder in diffusers' format is served: "
        f"--model {model}"
    )


def _explain_other(file: CheckpointFile) -> str:
    """Return what a file is that holds no denoiser that is known."""
    parts = {part.title for kind in KINDS.values() for part in kind.parts.values()}
    alone = {
        part.title
        for kind in KINDS.values()
        for part in kind.parts.values()
        if part.prefix_in(file.tensors) is not None
    }
    if found := sorted(alone & parts - {"UNet", "transformer"}):
        return (
            f"a {' and '.join(found)} alone, no model; give it to the import of a model's own file, such as "
            "--parts vae=FILE"
        )
    names = file.tensors
    if "decoder.conv_in.weight" in names and "encoder.conv_in.weight" in names:
        return f"a VAE {_IN_DIFFUSERS}"
    if any(name.startswith(("transformer_blocks.", "down_blocks.")) for name in names):
        return f"a transformer or UNet {_IN_DIFFUSERS}"
    return (
        f"not a model that is known by its tensors, which begin with {_first_names(file)}; known are "
        f"{', '.join(kind.title for kind in KINDS.values())}"
    )


def _first_names(file: CheckpointFile) -> str:
    return ", ".join(name[:60] for name in sorted(file.tensors)[:_MAX_SHOWN])


def _says(file: CheckpointFile, word: str) -> bool:
    """Return whether the file's name or title has a word: some models differ in nothing else."""
    title = file.metadata.get("modelspec.title", "") + file.metadata.get("general.name", "")
    return word in f"{file.path.stem} {title}".lower().replace("-", "_")


def _rows(names: Tensors, name: str) -> int:
    return names[name].shape[0] if name in names and names[name].shape else 0


def _columns(names: Tensors, name: str) -> int:
    shape = names[name].shape if name in names else ()
    return shape[1] if len(shape) > 1 else 0

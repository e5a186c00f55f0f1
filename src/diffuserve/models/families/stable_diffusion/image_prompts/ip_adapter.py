"""IP-Adapters (Ye et al. 2023, arXiv:2308.06721) by their files' headers. Importing this loads no torch.

A file in the official layout has the projection of an image's embedding to tokens, `image_proj.…`, and a key
and a value for each cross-attention of the UNet, `ip_adapter.{n}.to_k_ip` and `to_v_ip`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.safetensors_file import open_safetensors
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.vision.vision_config import ClipVisionConfig

ENCODER = "image_encoder"
PROJECTION, ATTENTION = "image_proj.", "ip_adapter."
HEAD_DIM = 64  # of the heads by which a resampler's tokens read an image
_FLOATS = ("F32", "F16", "BF16")
_MAX_TOKENS, _MAX_LAYERS = 1024, 64
_OTHERS = {
    "proj.0.weight": "IP-Adapter FaceID or Full",
    "perceiver_resampler.proj_in.weight": "IP-Adapter FaceID Plus",
}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ResamplerShape:
    """Shape of the resampler of an IP-Adapter Plus: its width, that of its heads together, and its layers."""

    width: int
    inner: int
    hidden: int
    layers: int


@dataclass(frozen=True)
class IpAdapterShape:
    """Shape of an IP-Adapter: each image becomes `tokens` of `text_dim`, from `image_dim` of its encoder.

    One without a `resampler` reads an image as a single embedding, one with it all of the image's tokens.
    """

    tokens: int
    image_dim: int
    text_dim: int
    resampler: ResamplerShape | None = None


@dataclass(frozen=True)
class IpAdapter:
    """An IP-Adapter whose header fits a UNet, with its image encoder."""

    file: Path
    shape: IpAdapterShape
    encoder: ModelFolder
    encoder_config: ClipVisionConfig

    @property
    def weight_files(self) -> list[Path]:
        """Return all files whose weights are loaded."""
        return [self.file, *self.encoder.weights(ENCODER)]


def cross_attentions(config: UNetConfig) -> list[tuple[str, int]]:
    """Return the names and widths of a UNet's cross-attentions, in the order in which adapters count them.

    It is that of diffusers' `UNet2DConditionModel.attn_processors`: down, up, and then the middle.
    """
    last = config.num_levels - 1
    down = [
        (f"down_blocks.{level}.attentions", level, config.layers[level])
        for level, kind in enumerate(config.down_block_types)
        if kind == "CrossAttnDownBlock2D"
    ]
    up = [
        (f"up_blocks.{place}.attentions", last - place, config.layers[last - place] + 1)
        for place, kind in enumerate(config.up_block_types)
        if kind == "CrossAttnUpBlock2D"
    ]
    return [
        (f"{name}.{index}.transformer_blocks.{depth}.attn2", config.block_out_channels[level])
        for name, level, count in (*down, *up, ("mid_block.attentions", last, 1))
        for index in range(count)
        for depth in range(config.transformer_layers[level])
    ]


def open_ip_adapter(path: Path, unet: UNetConfig) -> IpAdapter:
    """Return the IP-Adapter of a file, or of a folder that has one, as far as its header says.

    The image encoder is in the folder `image_encoder` beside the file or, as on the hub, in
    `../models/image_encoder`. Raise `InvalidModel` for a pickle, another kind, or one that was made for
    another UNet or another encoder.
    """
    file = _file_of(path)
    stored = open_safetensors(file).stored
    for name, tensor in stored.items():
        if tensor.dtype not in _FLOATS:
            raise InvalidModel(f"{file}: {name} is stored as {tensor.dtype}; read are {', '.join(_FLOATS)}")
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    shape = _shape_of(file, shapes)
    if shape.text_dim != unet.cross_attention_dim:
        raise InvalidModel(
            f"{file}: was made for a UNet with cross_attention_dim={shape.text_dim}; this one has "
            f"{unet.cross_attention_dim}"
        )
    _check_shapes(file, shapes, _tensors_of(shape, unet))
    return IpAdapter(file, shape, *_encoder_of(file, shape))


def attention_name(index: int) -> str:
    """Return what the names of the weights for a cross-attention begin with."""
    return f"{ATTENTION}{2 * index + 1}"  # self-attentions count too


def _file_of(path: Path) -> Path:
    """Return the safetensors file that a path means. Raise `InvalidModel`."""
    if path.is_file():
        if path.suffix != ".safetensors":
            raise InvalidModel(
                f"{path}: IP-Adapters are read from .safetensors alone, since pickles can run code; the hub "
                f"has the same as {path.stem}.safetensors"
            )
        return path
    if not path.is_dir():
        raise InvalidModel(f"{path}: no such file or folder; give an IP-Adapter's .safetensors")
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files[:5]) or "none"
        raise InvalidModel(f"{path}: must hold one .safetensors, or give a file itself; found: {found}")
    return files[0]


def _shape_of(file: Path, shapes: Mapping[str, Shape]) -> IpAdapterShape:
    """Return an adapter's shape by the tensors of its projection. Raise `InvalidModel`."""
    for name, kind in _OTHERS.items():
        if f"{PROJECTION}{name}" in shapes:
            raise InvalidModel(f"{file}: is of the kind {kind}; read are IP-Adapter and IP-Adapter Plus")
    if f"{PROJECTION}proj.weight" in shapes:
        (text_dim,) = _shape(file, shapes, "norm.weight", 1)
        rows, image_dim = _shape(file, shapes, "proj.weight", 2)
        shape = IpAdapterShape(rows // text_dim, image_dim, text_dim)
    else:
        shape = _resampled(file, shapes)
    if not 1 <= shape.tokens <= _MAX_TOKENS:
        raise InvalidModel(f"{file}: makes {shape.tokens} tokens of an image; 1…{_MAX_TOKENS} are read")
    return shape


def _resampled(file: Path, shapes: Mapping[str, Shape]) -> IpAdapterShape:
    _, tokens, width = _shape(file, shapes, "latents", 3)
    _, image_dim = _shape(file, shapes, "proj_in.weight", 2)
    text_dim, _ = _shape(file, shapes, "proj_out.weight", 2)
    inner, _ = _shape(file, shapes, "layers.0.0.to_q.weight", 2)
    hidden, _ = _shape(file, shapes, "layers.0.1.1.weight", 2)
    layers = sum(name.startswith(f"{PROJECTION}layers.") and name.endswith(".to_q.weight") for name in shapes)
    if layers > _MAX_LAYERS or inner % HEAD_DIM:
        raise InvalidModel(
            f"{file}: must have at most {_MAX_LAYERS} layers, and heads of {HEAD_DIM}; its first layer has "
            f"{inner} channels in all heads"
        )
    return IpAdapterShape(tokens, image_dim, text_dim, ResamplerShape(width, inner, hidden, layers))


def _shape(file: Path, shapes: Mapping[str, Shape], name: str, ndim: int) -> Shape:
    shape = shapes.get(f"{PROJECTION}{name}", ())
    if len(shape) != ndim or 0 in shape:
        raise InvalidModel(
            f"{file}: {PROJECTION}{name} has shape {shape}, where {ndim} sides are read; give an IP-Adapter "
            "in the official layout"
        )
    return shape


def _tensors_of(shape: IpAdapterShape, unet: UNetConfig) -> dict[str, Shape]:
    """Return the name and shape of each tensor of an adapter for a UNet."""
    attentions = {
        f"{attention_name(index)}.{part}.weight": (width, shape.text_dim)
        for index, (_, width) in enumerate(cross_attentions(unet))
        for part in ("to_k_ip", "to_v_ip")
    }
    return attentions | {f"{PROJECTION}{name}": each for name, each in _projection(shape).items()}


def _projection(shape: IpAdapterShape) -> dict[str, Shape]:
    text_dim, plus = shape.text_dim, shape.resampler
    if plus is None:
        rows = shape.tokens * text_dim
        return {"proj.weight": (rows, shape.image_dim), "proj.bias": (rows,)} | _norm("norm", text_dim)
    found: dict[str, Shape] = {
        "latents": (1, shape.tokens, plus.width),
        "proj_in.weight": (plus.width, shape.image_dim),
        "proj_in.bias": (plus.width,),
        "proj_out.weight": (text_dim, plus.width),
        "proj_out.bias": (text_dim,),
        **_norm("norm_out", text_dim),
    }
    for index in range(plus.layers):
        found |= {f"layers.{index}.{name}": each for name, each in _layer(plus).items()}
    return found


def _layer(plus: ResamplerShape) -> dict[str, Shape]:
    width, inner, hidden = plus.width, plus.inner, plus.hidden
    return {
        **_norm("0.norm1", width),
        **_norm("0.norm2", width),
        "0.to_q.weight": (inner, width),
        "0.to_kv.weight": (2 * inner, width),
        "0.to_out.weight": (width, inner),
        **_norm("1.0", width),
        "1.1.weight": (hidden, width),
        "1.3.weight": (width, hidden),
    }


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _check_shapes(file: Path, shapes: Mapping[str, Shape], expected: Mapping[str, Shape]) -> None:
    """Raise `InvalidModel` for the first tensor that is missing, foreign or of another shape."""
    for name in (*expected, *shapes):
        if shapes.get(name) != expected.get(name):
            raise InvalidModel(
                f"{file}: {name} has shape {shapes.get(name, 'none')}, where this model's UNet needs "
                f"{expected.get(name, 'no such tensor')}; give an IP-Adapter that was made for it"
            )


def _encoder_of(file: Path, shape: IpAdapterShape) -> tuple[ModelFolder, ClipVisionConfig]:
    """Return the folder that holds the image encoder of an adapter, and its config. Raise `InvalidModel`."""
    parents = (file.parent, file.parent.parent / "models")
    folders = [ModelFolder(parent) for parent in parents if (parent / ENCODER).is_dir()]
    found = [(folder, ClipVisionConfig.read(folder, ENCODER)) for folder in folders]
    for folder, config in found:
        if _image_dim(shape, config) == shape.image_dim:
            folder.weights(ENCODER)
            return folder, config
    dims = ", ".join(f"{folder.path / ENCODER} has {_image_dim(shape, each)}" for folder, each in found)
    raise InvalidModel(
        f"{file}: reads image encoders with {'projection_dim' if shape.resampler is None else 'hidden_size'}="
        f"{shape.image_dim}, in the folder {ENCODER} beside it; {dims or 'there is none'}"
    )


def _image_dim(shape: IpAdapterShape, config: ClipVisionConfig) -> int:
    return config.projection_dim if shape.resampler is None else config.hidden_size

"""The models whose files are imported: the parts of each, and how a part is told in a file of its authors.

Importing this loads no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diffuserve.models.checkpoint_files.checkpoint_file import TensorInfo

Tensors = Mapping[str, TensorInfo]

_COMFY: Final = "model.diffusion_model."


@dataclass(frozen=True)
class PartLayout:
    """A component in the layout of its authors: one of the tensors `marks` shows it, after a prefix.

    `converter` names the function of `converters` that turns it into the library's own layout.
    """

    title: str
    marks: tuple[str, ...]
    prefixes: tuple[str, ...]
    converter: str

    def prefix_in(self, tensors: Tensors) -> str | None:
        """Return the prefix of this part's tensors in a file; `None` if the file lacks the part."""
        shown = (prefix for prefix in self.prefixes for mark in self.marks if f"{prefix}{mark}" in tensors)
        return next(shown, None)


_UNET = PartLayout("UNet", ("input_blocks.0.0.weight",), (_COMFY, ""), "unet")
_VAE = PartLayout(
    "VAE", ("decoder.up.0.block.0.norm1.weight",), ("first_stage_model.", "vae.", ""), "image_vae"
)
_CLIP = PartLayout(
    "CLIP text encoder",
    ("text_model.embeddings.token_embedding.weight", "embeddings.token_embedding.weight"),
    (
        "cond_stage_model.transformer.",
        "conditioner.embedders.0.transformer.",
        "text_encoders.clip_l.transformer.",
        "text_encoders.clip_l.",
        "",
    ),
    "clip",
)
_CLIP_G = PartLayout(
    "OpenCLIP text encoder", ("token_embedding.weight",), ("conditioner.embedders.1.model.", ""), "open_clip"
)
_T5 = PartLayout(
    "T5 text encoder",
    ("encoder.block.0.layer.0.SelfAttention.q.weight",),
    ("text_encoders.t5xxl.transformer.", "text_encoders.t5xxl.", ""),
    "t5",
)
_UMT5 = PartLayout(
    "UMT5 text encoder",
    ("encoder.block.0.layer.0.SelfAttention.q.weight",),
    ("text_encoders.umt5xxl.transformer.", ""),
    "t5",
)
_FLUX = PartLayout("transformer", ("double_blocks.0.img_attn.qkv.weight",), (_COMFY, ""), "flux")
_WAN = PartLayout("transformer", ("head.modulation",), (_COMFY, ""), "wan")
_WAN_VAE = PartLayout("VAE", ("decoder.middle.0.residual.0.gamma",), ("vae.", ""), "wan_vae")
_Z_IMAGE = PartLayout("transformer", ("layers.0.adaLN_modulation.0.weight",), (_COMFY, ""), "z_image")
_QWEN_IMAGE = PartLayout("transformer", ("transformer_blocks.0.img_mod.1.weight",), (_COMFY, ""), "as_it_is")


@dataclass(frozen=True)
class ModelKind:
    """A model as people share it: its pipeline's class, its parts by component, and who has the others.

    `pipelines` are the classes that such weights serve, the usual one first; `base` is the short name of
    the model whose text encoders, VAE, tokenizers, scheduler and configs fit. `fixed` are values of the
    denoiser's config that tell it from its siblings: a base with others is of another kind. `defaults` are
    settings of a folder that no config says.
    """

    name: str
    title: str
    pipelines: tuple[str, ...]
    base: str
    parts: Mapping[str, PartLayout]
    fixed: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def denoiser(self) -> str:
        """The component that a file must have."""
        return next(iter(self.parts))


_SD_PARTS = {"unet": _UNET, "vae": _VAE, "text_encoder": _CLIP}
_XL_PARTS = {**_SD_PARTS, "text_encoder_2": _CLIP_G}
_FLUX_PARTS = {"transformer": _FLUX, "vae": _VAE, "text_encoder": _CLIP, "text_encoder_2": _T5}
_WAN_PARTS = {"transformer": _WAN, "vae": _WAN_VAE, "text_encoder": _UMT5}

_ALL = (
    ModelKind(
        "sd-1.5",
        "Stable Diffusion 1.5",
        ("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "LatentConsistencyModelPipeline"),
        "sd-1.5",
        _SD_PARTS,
    ),
    ModelKind(
        "sd-1.5-inpaint",
        "Stable Diffusion 1.5 for inpainting",
        ("StableDiffusionInpaintPipeline",),
        "sd-1.5",
        _SD_PARTS,
    ),
    ModelKind(
        "sdxl",
        "Stable Diffusion XL",
        ("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"),
        "sdxl",
        _XL_PARTS,
    ),
    ModelKind(
        "sdxl-inpaint",
        "Stable Diffusion XL for inpainting",
        ("StableDiffusionXLInpaintPipeline",),
        "sdxl",
        _XL_PARTS,
    ),
    ModelKind(
        "flux-dev",
        "FLUX.1 dev",
        ("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxKontextPipeline"),
        "flux-dev",
        _FLUX_PARTS,
        ("guidance_embeds",),
    ),
    ModelKind(
        "flux-schnell",
        "FLUX.1 schnell",
        ("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline"),
        "flux-schnell",
        _FLUX_PARTS,
        ("guidance_embeds",),
    ),
    ModelKind(
        "flux-kontext",
        "FLUX.1 Kontext",
        ("FluxKontextPipeline",),
        "flux-kontext",
        _FLUX_PARTS,
        ("guidance_embeds",),
    ),
    ModelKind(
        "flux-fill", "FLUX.1 Fill", ("FluxFillPipeline",), "flux-dev", _FLUX_PARTS, ("guidance_embeds",)
    ),
    ModelKind("wan-2.1-t2v-1.3b", "Wan 2.1 T2V 1.3B", ("WanPipeline",), "wan-2.1-1.3b", _WAN_PARTS),
    ModelKind("wan-2.1-t2v-14b", "Wan 2.1 T2V 14B", ("WanPipeline",), "wan-2.1-14b", _WAN_PARTS),
    ModelKind("wan-2.1-i2v-14b", "Wan 2.1 I2V 14B", ("WanImageToVideoPipeline",), "wan-2.1-i2v", _WAN_PARTS),
    ModelKind("wan-2.2-ti2v-5b", "Wan 2.2 TI2V 5B", ("WanPipeline",), "wan-2.2-5b", _WAN_PARTS),
    ModelKind(
        "wan-2.2-t2v-a14b",
        "Wan 2.2 T2V A14B",
        ("WanPipeline",),
        "wan-2.2-a14b",
        {**_WAN_PARTS, "transformer_2": _WAN},
    ),
    ModelKind(
        "wan-2.2-i2v-a14b",
        "Wan 2.2 I2V A14B",
        ("WanImageToVideoPipeline",),
        "wan-2.2-i2v",
        {**_WAN_PARTS, "transformer_2": _WAN},
    ),
    ModelKind(
        "z-image",
        "Z-Image",
        ("ZImagePipeline", "ZImageImg2ImgPipeline"),
        "z-image",
        {"transformer": _Z_IMAGE, "vae": _VAE},
    ),
    ModelKind(
        "z-image-turbo",
        "Z-Image-Turbo",
        ("ZImagePipeline", "ZImageImg2ImgPipeline"),
        "z-image-turbo",
        {"transformer": _Z_IMAGE, "vae": _VAE},
        defaults={"num_inference_steps": 9, "guidance_scale": 0.0},
    ),
    ModelKind(
        "qwen-image",
        "Qwen-Image",
        ("QwenImagePipeline", "QwenImageImg2ImgPipeline"),
        "qwen-image",
        {"transformer": _QWEN_IMAGE, "vae": _WAN_VAE},
    ),
    ModelKind(
        "qwen-image-edit",
        "Qwen-Image-Edit",
        ("QwenImageEditPipeline", "QwenImageEditPlusPipeline"),
        "qwen-image-edit",
        {"transformer": _QWEN_IMAGE, "vae": _WAN_VAE},
    ),
)
KINDS: Final[Mapping[str, ModelKind]] = {kind.name: kind for kind in _ALL}

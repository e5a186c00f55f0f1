"""The families that adapter files are read for: their components, prefixes and layers in such files.

Importing this loads no torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from diffuserve.models.adapters.files.layer_table import Found, LayerTable, one
from diffuserve.models.adapters.files.transformer_layers import FLUX, FLUX2, QWEN_IMAGE, WAN, Z_IMAGE
from diffuserve.models.adapters.files.unet_layers import CLIP, UNET

_WRAPPERS = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
    "transformer.",
    "unet.",
)
"""Prefixes of a denoiser's layers, in the order in which some files have several."""

_ENCODER: Final = {
    "text_encoder.": "text_encoder",
    "lora_te_": "text_encoder",
    "lora_te1_": "text_encoder",
    "text_encoders.clip_l.transformer.": "text_encoder",
}
_ENCODERS: Final = {
    **_ENCODER,
    "text_encoder_2.": "text_encoder_2",
    "lora_te2_": "text_encoder_2",
    "text_encoders.clip_g.transformer.": "text_encoder_2",
}
_OF_TRAINERS = r"(lora_unet_|diffusion_model\.)"


class Located(NamedTuple):
    """A layer of a file: the component that it belongs to, and its layers there."""

    component: str
    found: Found


@dataclass(frozen=True)
class AdapterLayout:
    """How adapter files for a family name its layers.

    `encoders` are prefixes of text encoders with their components, and `denoisers` those of denoisers beside
    the first. `dropped` are patterns of names that
    diffusers leaves out when it reads such a file: images with an adapter are the same here and there. So are
    lone biases whose names match `dropped_alone`. `completes_alphas`: layers without an alpha get the
    commonest one of their component, as in diffusers. `takes_changes`: what is added to biases and whole
    weights is applied.
    """

    title: str
    denoiser: str
    table: LayerTable
    encoders: Mapping[str, str]
    dropped: tuple[str, ...] = ()
    dropped_alone: str = ""
    completes_alphas: bool = False
    takes_changes: bool = False
    denoisers: Mapping[str, str] = field(default_factory=dict)

    def drops(self, name: str) -> bool:
        """Return whether diffusers leaves a tensor out."""
        return any(re.fullmatch(pattern, name) for pattern in self.dropped)

    def locate(self, module: str) -> Located | None:
        """Return what a layer of a file is; `None` if it is no layer of this family."""
        for prefix, component in self.encoders.items():
            if module.startswith(prefix):
                found = CLIP.find(module.removeprefix(prefix))
                return None if found is None else Located(component, found)
        for prefix, component in self.denoisers.items():
            if module.startswith(prefix):
                found = self.table.find(module.removeprefix(prefix))
                return None if found is None else Located(component, found)
        for name in _unwrapped(module):
            if (found := self.table.find(name)) is not None:
                return Located(self.denoiser, found)
        return None


def _unwrapped(module: str) -> Iterator[str]:
    """Yield a name without its prefixes, and with fewer of them."""
    yield module
    for prefix in _WRAPPERS:
        if module.startswith(prefix):
            module = module.removeprefix(prefix)
            yield module


LAYOUTS: Final[Mapping[str, AdapterLayout]] = {
    "flux": AdapterLayout(
        "FLUX.1",
        "transformer",
        FLUX,
        _ENCODER,
        dropped=(
            rf"{_OF_TRAINERS}(img_in|txt_in|time_in|vector_in|guidance_in|final_layer)[._].*",
            r"(lora_|diffusion_model\.|text_encoders\.).*\.diff(_b)?",
            r".*position_embedding.*",
            r"lora_te1?_text_projection\..*",
            r"text_encoders\.t5xxl\..*",
            r"lora_te[23]_.*",
        ),
        completes_alphas=True,
    ),
    "flux2": AdapterLayout(
        "FLUX.2",
        "transformer",
        FLUX2,
        {},
        dropped=(r"lora_unet_(guidance_in|final_layer_adaLN|single_stream_mod|double_stream_mod).*",),
    ),
    "z_image": AdapterLayout("Z-Image", "transformer", Z_IMAGE, {}),
    "qwen_image": AdapterLayout("Qwen-Image", "transformer", QWEN_IMAGE, {}),
    "stable_diffusion": AdapterLayout("Stable Diffusion", "unet", UNET, _ENCODERS, completes_alphas=True),
    "wan": AdapterLayout(
        "Wan",
        "transformer",
        WAN,
        {},
        dropped=(r".*norm.*\.diff(_b)?", r"(?!.*head\.head\.).*\.diff"),
        dropped_alone=r".*time_projection\..*",
        takes_changes=True,
        denoisers={"transformer_2.": "transformer_2"},
    ),
}
"""The layouts by the names of the families' folders in `models`."""


def layout_of_own_names(title: str, denoiser: str, layers: Iterable[str]) -> AdapterLayout:
    """Return the layout of files that name a denoiser's layers as its module does."""
    return AdapterLayout(title, denoiser, LayerTable({layer: one(layer) for layer in layers}), _ENCODERS)

"""Turns tensors of the authors' layouts into those of diffusers and transformers, by diffusers' functions.

They rename, cut and join; given deferred tensors they read nothing. Each takes the tensors of one component,
without the prefix that they have in a file, and the config that the component will have.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

Tensors = dict[str, Any]
Config = Mapping[str, Any]

_IGNORED: Final = (
    "embeddings.position_ids",
    "logit_scale",
    "spiece_model",
    "scaled_fp8",
    "__index_timestep_zero__",
    "norm_final.weight",  # of Z-Image, whose code does not use it
)
"""Endings of tensors in original files that no module has: buffers, and what other programs add."""


def convert(converter: str, tensors: Tensors, config: Config) -> Tensors:
    """Return a component's tensors in its library's layout."""
    kept = {name: tensor for name, tensor in tensors.items() if not is_ignored(name)}
    return _CONVERTERS[converter](kept, config)


def is_ignored(name: str) -> bool:
    """Return whether a tensor is of no use to any module."""
    return name.endswith(_IGNORED)


def _unet(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import LDM_UNET_KEY, convert_ldm_unet_checkpoint

    prefixed = {f"{LDM_UNET_KEY}{name}": tensor for name, tensor in tensors.items()}
    return dict(convert_ldm_unet_checkpoint(prefixed, config))


def _image_vae(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

    return dict(convert_ldm_vae_checkpoint(tensors, config))


def _clip(tensors: Tensors, config: Config) -> Tensors:
    """Return them as they are, without an image encoder: the authors used transformers' own class."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_OF_IMAGES)}


_OF_IMAGES = ("vision_model.", "visual_projection.")


def _open_clip(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import convert_open_clip_checkpoint

    return dict(convert_open_clip_checkpoint(None, tensors, prefix=""))


def _flux(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers

    with _Shares():
        return dict(convert_flux_transformer_checkpoint_to_diffusers(tensors))


class _Shares(torch.overrides.TorchFunctionMode):
    """Cuts a tensor in the shares that were asked for, whatever its size.

    The converter knows FLUX.1's own width alone, and others have the same shares: queries, keys and values of
    one width, and four times as much for the feed-forward layer.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is torch.split and isinstance(args[1], tuple):
            tensor, sizes, *rest = args
            size = tensor.shape[(kwargs or {}).get("dim", 0)]
            args = (tensor, tuple(share * size // sum(sizes) for share in sizes), *rest)
        return function(*args, **(kwargs or {}))


def _wan(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

    return dict(convert_wan_transformer_to_diffusers(tensors))


def _wan_vae(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    return dict(convert_wan_vae_to_diffusers(tensors))


def _z_image(tensors: Tensors, config: Config) -> Tensors:
    from diffusers.loaders.single_file_utils import convert_z_image_transformer_checkpoint_to_diffusers

    return dict(convert_z_image_transformer_checkpoint_to_diffusers(tensors))


def _t5(tensors: Tensors, config: Config) -> Tensors:
    """Return them under one of the two names that the embeddings of tokens have."""
    embeddings = tensors.get(_SHARED, tensors.get(_EMBEDDED))
    others = {name: tensor for name, tensor in tensors.items() if name not in (_SHARED, _EMBEDDED)}
    return others if embeddings is None else {_SHARED: embeddings, **others}


_SHARED, _EMBEDDED = "shared.weight", "encoder.embed_tokens.weight"


def _as_it_is(tensors: Tensors, config: Config) -> Tensors:
    return tensors


_CONVERTERS: Final[Mapping[str, Callable[[Tensors, Config], Tensors]]] = {
    "unet": _unet,
    "image_vae": _image_vae,
    "clip": _clip,
    "open_clip": _open_clip,
    "t5": _t5,
    "flux": _flux,
    "wan": _wan,
    "wan_vae": _wan_vae,
    "z_image": _z_image,
    "as_it_is": _as_it_is,
}

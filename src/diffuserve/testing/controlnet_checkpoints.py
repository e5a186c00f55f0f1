"""Small ControlNets with random weights, in diffusers' format, for the checkpoints of this package.

All of their weights are random: those of real ones that start as zeros would add nothing.
"""

import warnings
from pathlib import Path
from typing import Any

import torch

from diffuserve.testing.checkpoints import as_module, redraw_weights, require_libraries, save_module

_EMBEDDING = (4, 8, 8, 8)  # three halvings: a latent cell has eight pixels a side


def write_unet_controlnet(folder: Path, model: Path, *, seed: int = 1, **options: Any) -> Path:
    """Write a random ControlNet for the UNet of the folder `model` into `folder` and return it.

    `options` override values of its config. Raise `ImportError` as `write_unet_checkpoint` does.
    """
    require_libraries()
    from diffusers import ControlNetModel, UNet2DConditionModel

    with torch.random.fork_rng(devices=[]):
        unet = UNet2DConditionModel.from_config(
            UNet2DConditionModel.load_config(model / "unet", local_files_only=True)
        )
        copied = ControlNetModel.from_unet(
            unet, conditioning_embedding_out_channels=_EMBEDDING, load_weights_from_unet=False
        )
        net = ControlNetModel.from_config({**copied.config, **options}) if options else copied
    return _write(folder, net, seed)


def write_flux_controlnet(folder: Path, model: Path, *, seed: int = 1, **options: Any) -> Path:
    """Write a random ControlNet for the transformer of the folder `model` into `folder` and return it.

    It has two blocks with two streams and a single one; `options` override values of its config: `num_mode`
    for several kinds of images, or `conditioning_embedding_channels` to read pixels. Raise `ImportError` as
    `write_flux_checkpoint` does.
    """
    require_libraries()
    from diffusers import FluxControlNetModel, FluxTransformer2DModel

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of diffusers about an import of its own
        config = FluxTransformer2DModel.load_config(model / "transformer", local_files_only=True)
        own = {"num_layers": 2, "num_single_layers": 1, **options}
        net = FluxControlNetModel.from_config({**config, **own})
    return _write(folder, net, seed)


def _write(folder: Path, net: Any, seed: int) -> Path:
    redraw_weights(as_module(net), torch.Generator().manual_seed(seed))
    save_module(net, folder)
    return folder

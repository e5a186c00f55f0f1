"""Which weights of what diffusers runs may stay on the host: those of text encoders and denoisers.

Pipelines read weights of autoencoders by themselves, such as statistics of latents; those stay on the device.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from diffuserve.models.families.any_pipeline.reading.configs import DENOISERS
from diffuserve.models.families.any_pipeline.running.hooks import UNPARKED
from diffuserve.models.offload.components import Component, Ring

_LEAST_LAYERS = 2
_OF_IMAGES = ("visual", "vision")  # layers of text encoders that prompts alone do not pass


def may_wait(name: str) -> bool:
    """Return whether a component, by its name, may stay on the host."""
    return name.startswith(("text_encoder", *DENOISERS))


def waiting_components(parts: Mapping[str, Any]) -> Iterator[Component]:
    """Yield the components that may stay on the host, which are brought in for each pass."""
    for name, module in parts.items():
        if isinstance(module, nn.Module) and may_wait(name):
            is_denoiser = name.startswith(DENOISERS)
            yield Component(
                module,
                rings=list(_rings(module)),
                is_encoder=not is_denoiser,
                is_denoiser=is_denoiser,
                entries=(f"{UNPARKED}forward",),
            )


def _rings(module: nn.Module) -> Iterator[Ring]:
    """Yield the outermost lists of layers."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList) and len(child) >= _LEAST_LAYERS:
            yield Ring(list(child))
        else:
            is_of_images = name.startswith(_OF_IMAGES)
            yield from (replace(ring, is_in_every_pass=not is_of_images) for ring in _rings(child))

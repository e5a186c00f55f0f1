"""A method of a model that a pipeline called: what its run is parked at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from diffuserve.models.layers.adapted.adapters import Uses

_DENOISERS = ("transformer", "unet", "controlnet")  # and their numbered siblings


@dataclass(frozen=True)
class Call:
    """A method of a model that a pipeline called, by its component's name, and what with.

    `adapters` are those of its request that change the component.
    """

    component: str
    module: nn.Module
    method: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    adapters: Uses = ()

    @property
    def is_denoising(self) -> bool:
        """True for a pass of the model that predicts noise."""
        return self.method == "forward" and self.component.startswith(_DENOISERS)

    @property
    def is_decoding(self) -> bool:
        """True where finished latents become pixels or sound."""
        return self.method == "decode"

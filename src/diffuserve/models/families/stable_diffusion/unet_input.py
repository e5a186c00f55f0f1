"""The rows that a UNet reads, and those on which ControlNets run beside it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.models.families.stable_diffusion.attention import Context
from diffuserve.models.families.stable_diffusion.image_prompts.attention import ImageTokens, image_runs
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.machine.devices import to_device

Features = Float[Tensor, "rows channels height width"]
Text = Float[Tensor, "rows tokens text_dim"]


@dataclass(frozen=True)
class UNetInput:
    """A batch of latents of one size, each row with its own timestep and conditioning.

    SDXL adds a pooled prompt and `sizes`, the six numbers of the original and the target size; models
    distilled with guidance add its embedding. `adapters` are those of the rows, and `controls` say on which
    rows ControlNets run. `images` are the tokens of the image prompts of each row, if any has some.
    """

    latents: Features
    timesteps: Float[Tensor, "rows"]
    text: Text
    pooled: Float[Tensor, "rows pooled_width"] | None = None
    sizes: Float[Tensor, "rows numbers"] | None = None
    guidance: Float[Tensor, "rows guidance_width"] | None = None
    adapters: RowAdapters | None = None
    controls: "tuple[ControlRows, ...]" = ()
    images: tuple[ImageTokens | None, ...] = ()

    def __len__(self) -> int:
        return len(self.latents)

    @cached_property
    def context(self) -> Context:
        """Return what the rows attend to."""
        return Context(self.text, image_runs(self.images))

    def take(self, rows: range) -> "UNetInput":
        """Return some rows; past the end the last one is repeated, without adapters."""
        places = torch.arange(rows.start, rows.stop).clamp(max=len(self) - 1)
        adapters = None if self.adapters is None else self.adapters.part(rows)
        controls = [control.take(places.tolist()) for control in self.controls]
        return replace(
            self.at(places),
            adapters=adapters,
            controls=tuple(control for control in controls if control.rows),
            images=tuple(self.images[place] for place in places.tolist()) if self.images else (),
        )

    def at(self, places: Tensor) -> "UNetInput":
        """Return the rows at some places, without adapters, ControlNets and image prompts."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        taken = {name: value[places] for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **taken, adapters=None, controls=(), images=())


@dataclass(frozen=True)
class ControlRows:
    """The rows of a batch on which a ControlNet runs, each with its weight and its embedded control image."""

    net: Callable[[UNetInput, Features], list[Tensor]]
    rows: tuple[int, ...]
    weights: tuple[float, ...]
    embedded: Features

    def take(self, rows: Sequence[int]) -> "ControlRows":
        """Return what it does in some rows of the batch."""
        used = [(own, row) for own, row in enumerate(self.rows)]
        pairs = [(place, own) for place, taken in enumerate(rows) for own, row in used if row == taken]
        return replace(
            self,
            rows=tuple(place for place, _ in pairs),
            weights=tuple(self.weights[own] for _, own in pairs),
            embedded=self.embedded[[own for _, own in pairs]],
        )

    def changes(self, batch: UNetInput) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each skip and then the middle, its rows and what is added to them."""
        device = batch.latents.device
        rows = to_device(torch.tensor(self.rows), device)
        weights = to_device(torch.tensor(self.weights, dtype=batch.latents.dtype), device)
        for change in self.net(batch.at(rows), self.embedded):
            yield rows, change * weights[:, None, None, None]

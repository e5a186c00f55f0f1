"""The ControlNets of requests in a step: which run, on which passes, and what their images are."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.flux.controlnet import ControlInput, FluxControlNet, first_rows, with_mode
from diffuserve.models.families.flux.text import FluxConditioning
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.families.packed_images.passes import ImagePass
from diffuserve.models.layers.joint.block_changes import BlockChanges
from diffuserve.models.layers.joint.packing import PackedInput, PackedLayout, SequenceShape
from diffuserve.models.layers.joint.schedule_factors import ScheduleFactors
from diffuserve.models.machine.devices import to_device
from diffuserve.models.pipelines.base import DenoiseInput
from diffuserve.models.pipelines.input_tensors import image_tensor

LayoutOf = Callable[[tuple[SequenceShape, ...]], PackedLayout]
TimestepsOf = Callable[[DenoiseInput], Sequence[float]]


@dataclass(frozen=True)
class _ControlledPass:
    """A pass with a ControlNet that acts in its step; its image tokens begin at `first` of the image row."""

    of: ImagePass
    first: int
    use: ControlUse
    control: Tensor


class FluxControls:
    """The ControlNets that are loaded beside a transformer, by name.

    Control images are guides of a request, after its others: drawn with its latents, as the reference does.
    """

    def __init__(self, spec: ModelSpec, images: LatentImages, nets: Mapping[str, FluxControlNet]) -> None:
        self.spec, self.nets, self._images = spec, nets, images
        self._factors = {
            name: ScheduleFactors(_factor_bytes(net, images.dtype)) for name, net in nets.items()
        }

    def key(self, params: GenerationParams) -> Hashable:
        """Return what the encoded control images of a request depend on."""
        uses = [(use.name, use.image) for use in self.spec.control_uses(params)]
        return (tuple(uses), params.width, params.height) if uses else None

    def encode(self, params: GenerationParams) -> tuple[Tensor, ...]:
        """Return each control image: the moments of its latents, or what is read of its pixels."""
        assert params.width is not None
        assert params.height is not None
        size = (params.width, params.height)
        return tuple(self._encoded(use, *size) for use in self.spec.control_uses(params))

    def draw(
        self,
        params: GenerationParams,
        conditioning: FluxConditioning,
        generators: Sequence[torch.Generator],
    ) -> tuple[Tensor, ...]:
        """Return the tokens of each control image: for each image of a request, or one for all."""
        uses = zip(self.spec.control_uses(params), conditioning.controls, strict=True)
        return tuple(
            found if self.nets[use.name].reads_pixels else self._drawn(found, generators)
            for use, found in uses
        )

    def other_guides(self, request: DenoiseInput) -> tuple[Tensor, ...]:
        """Return the guides of a request without its control images."""
        return request.guides[: len(request.guides) - len(self.spec.control_uses(request.params))]

    def changes(
        self, passes: Sequence[ImagePass], layout_of: LayoutOf, timesteps_of: TimestepsOf
    ) -> tuple[BlockChanges, ...]:
        """Return what each ControlNet changes in a step of passes, in the order of their image row."""
        found: dict[str, list[_ControlledPass]] = {name: [] for name in self.nets}
        first = 0
        for each in passes:
            for use, control in self._active(each.request):
                image = control[each.image if len(control) > 1 else 0]
                found[use.name].append(_ControlledPass(each, first, use, image))
            first += each.shape.image_tokens
        return tuple(
            self._changes(name, uses, layout_of, timesteps_of) for name, uses in found.items() if uses
        )

    def _active(self, request: DenoiseInput) -> list[tuple[ControlUse, Tensor]]:
        uses = self.spec.control_uses(request.params)
        pairs = zip(uses, request.guides[len(request.guides) - len(uses) :], strict=True)
        return [(use, guide) for use, guide in pairs if use.acts_in(request.step, request.num_steps)]

    def _changes(
        self,
        name: str,
        uses: Sequence[_ControlledPass],
        layout_of: LayoutOf,
        timesteps_of: TimestepsOf,
    ) -> BlockChanges:
        net = self.nets[name]
        shapes = tuple(replace(use.of.shape, text=use.of.shape.text + bool(net.num_modes)) for use in uses)
        texts = [with_mode(use.of.text) if net.num_modes else use.of.text for use in uses]
        packed = PackedInput(
            image=torch.cat([use.of.request.latents[use.of.image] for use in uses]),
            text=torch.cat(texts),
            factors=torch.cat([self._factor_row(name, use.of.request, timesteps_of) for use in uses]),
            layout=layout_of(shapes),
        )
        control = torch.cat([use.control for use in uses])
        double, single = net(ControlInput(packed, control, *_modes(net, uses, texts)))
        rows, weights = _rows(uses, packed.image)
        return BlockChanges(
            rows,
            [change * weights for change in double],
            [change * weights for change in single],
            repeats=net.reads_pixels,
        )

    def _factor_row(self, name: str, request: DenoiseInput, timesteps_of: TimestepsOf) -> Tensor:
        assert isinstance(request.conditioning, FluxConditioning)
        pooled, guidance = request.conditioning.pooled, float(request.params.guidance_scale or 0.0)

        def make(timesteps: Sequence[float]) -> Tensor:
            return self.nets[name].factors_of(pooled, guidance, (), timesteps)

        return self._factors[name].of_prompt(pooled, guidance, timesteps_of(request), make)

    def _encoded(self, use: ControlUse, width: int, height: int) -> Tensor:
        assert isinstance(use.image, InputImage)
        pixels, net = image_tensor(use.image, width, height), self.nets[use.name]
        if not net.reads_pixels:
            return self._images.moments(pixels)
        own = pixels.to(self._images.device, net.x_embedder.weight.dtype)
        return self._images.pack([net.input_hint_block(own)])

    def _drawn(self, moments: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        return self._images.pack([self._images.sample(moments, generator) for generator in generators])


def _factor_bytes(net: FluxControlNet, dtype: torch.dtype) -> int:
    return net.num_factors * net.config.dim * dtype.itemsize


def _modes(
    net: FluxControlNet, uses: Sequence[_ControlledPass], texts: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the mode of each sequence, and the row of the text that it takes; nothing of a single kind."""
    if not net.num_modes:
        return None, None
    device = texts[0].device
    modes = torch.tensor([use.use.mode or 0 for use in uses])
    return to_device(modes, device), to_device(first_rows([len(text) for text in texts]), device)


def _rows(uses: Sequence[_ControlledPass], image: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the model's image row that change, and how much each counts."""
    rows = [torch.arange(use.first, use.first + len(use.control)) for use in uses]
    weights = [torch.full((len(use.control), 1), use.use.weight, dtype=image.dtype) for use in uses]
    return to_device(torch.cat(rows), image.device), to_device(torch.cat(weights), image.device)

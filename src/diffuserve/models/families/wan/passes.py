"""The sequences of a forward pass: each clip of each request, once per text that guides it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.images import FirstFrame
from diffuserve.models.families.wan.packing import ClipAdapters, ClipLayout, ClipShape, patchify
from diffuserve.models.families.wan.text import WanConditioning
from diffuserve.models.families.wan.transformer import PackedWanInput
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import DenoiseInput

_CLEAN = 0.0  # the timestep of a frame that is given


@dataclass(frozen=True)
class Pass:
    """One clip of a request, with one of its texts."""

    request: DenoiseInput
    clip: int
    text: Tensor

    @property
    def uses(self) -> Uses:
        return self.request.adapters

    def sort_key(self, shape: ClipShape) -> tuple[object, ...]:
        """Return a key by which passes of equal length are neighbors, which share dense attention calls.

        Among these, those with equal adapters are.
        """
        uses = tuple((adapter.name, weight) for adapter, weight in self.uses)  # the same on all ranks
        return (shape.tokens, shape.text + shape.padding, shape.text, shape.frames, shape.rows, uses)

    @property
    def first_frame(self) -> FirstFrame | None:
        return wan(self.request).first_frame

    def latents(self, config: WanTransformerConfig) -> Tensor:
        """Return the model's input for the clip: its latents, and the further channels beside them."""
        latents = self.request.latents[self.clip : self.clip + 1]
        if self.first_frame is None or latents.shape[1] == config.in_channels:
            return latents
        return torch.cat([latents, self.first_frame.latents], dim=1)

    def timesteps(self, shape: ClipShape) -> list[float]:
        """Return the timestep of each factor row."""
        return [_CLEAN, self.request.timestep] if shape.has_first_frame else [self.request.timestep]

    def shape(self, config: WanTransformerConfig) -> ClipShape:
        """Return the tokens of the sequence, and of what they attend to."""
        _, channels, frames, height, width = self.request.latents.shape
        _, patch_rows, patch_columns = config.patch_size
        length, image = self.request.params.max_sequence_length, self.first_frame
        assert length is not None
        return ClipShape(
            frames=frames,
            rows=height // patch_rows,
            columns=width // patch_columns,
            text=len(self.text),
            padding=length - len(self.text),
            image=0 if image is None or image.embeddings is None else len(image.embeddings),
            has_first_frame=image is not None and channels == config.in_channels,
        )


def passes_of(request: DenoiseInput) -> list[Pass]:
    """Return the passes of a request: each clip with the prompt, then with the negative prompt."""
    clips = range(request.params.num_images)
    return [Pass(request, clip, text) for clip in clips for text in wan(request).texts]


def pack(
    passes: Sequence[Pass],
    shapes: Sequence[ClipShape],
    layout: ClipLayout,
    config: WanTransformerConfig,
) -> PackedWanInput:
    """Lay out passes, in the order of the layout's sequences."""
    pairs = list(zip(passes, shapes, strict=True))
    tokens = torch.cat([patchify(each.latents(config), config.patch_size) for each in passes])
    timesteps = [timestep for each, shape in pairs for timestep in each.timesteps(shape)]
    images = [each.first_frame.embeddings for each in passes if each.first_frame is not None]
    embeddings = [image for image in images if image is not None]
    return PackedWanInput(
        tokens=tokens,
        timestep=torch.tensor(timesteps, device=tokens.device),
        text=torch.cat([F.pad(each.text, (0, 0, 0, shape.text_rows - shape.text)) for each, shape in pairs]),
        layout=layout,
        image=torch.cat(embeddings) if embeddings else None,
        adapters=ClipAdapters.of(shapes, [each.uses for each in passes]),
    )


def guided(velocities: Sequence[Tensor], scale: float) -> Tensor:
    """Return the velocity of a clip from those of its passes: classifier-free guidance in their own dtype."""
    prompt, *negative = velocities
    return negative[0] + scale * (prompt - negative[0]) if negative else prompt


def wan(request: DenoiseInput) -> WanConditioning:
    """Return a request's conditioning."""
    assert isinstance(request.conditioning, WanConditioning)
    return request.conditioning

"""The passes of a denoising step: each image of each request, once for each text that guides it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.layers.adapted.adapters import PassAdapters
from diffuserve.models.layers.joint.packing import PackedInput, PackedLayout, SequenceShape
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput


@dataclass(frozen=True, eq=False)
class ImagePass:
    """An image of a request with one of its texts: a sequence of a forward pass."""

    request: DenoiseInput
    image: int
    text: Tensor
    shape: SequenceShape

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Return a key by which passes of equal length are neighbors, which share dense attention calls.

        Among these, those with equal adapters are.
        """
        shape, adapters = self.shape, self.request.adapters
        uses = tuple((adapter.name, weight) for adapter, weight in adapters)  # the same on all ranks
        return (shape.tokens, shape.text, shape.image_tokens, shape.image.rows, uses)


def passes_of(
    request: DenoiseInput, shape_of: Callable[[DenoiseInput, Tensor], SequenceShape]
) -> list[ImagePass]:
    """Return the passes of a request: its images with the prompt, then with the negative prompt."""
    texts = conditioning_of(request.conditioning).texts
    images = range(len(request.latents))
    return [
        ImagePass(request, image, text, shape)
        for text, shape in ((text, shape_of(request, text)) for text in texts)
        for image in images
    ]


def in_forwards(passes: Sequence[ImagePass], is_compiled: bool) -> list[list[int]]:
    """Return the places of passes that share a forward pass, in the order in which they are packed.

    Compiled blocks add no adapters. So passes with adapters run eagerly, apart from the others, which run
    compiled beside any neighbors.
    """
    order = sorted(range(len(passes)), key=lambda index: passes[index].sort_key)
    if not is_compiled:
        return [order]
    plain = [index for index in order if not passes[index].request.adapters]
    adapted = [index for index in order if passes[index].request.adapters]
    return [indices for indices in (plain, adapted) if indices]


def pack(
    passes: Sequence[ImagePass],
    layout: PackedLayout,
    inputs_of: Callable[[DenoiseInput], Tensor],
    factors_of: Callable[[DenoiseInput], Tensor],
) -> PackedInput:
    """Lay out passes in the order of the layout's sequences.

    `inputs_of` a request are the channels of its images' tokens, `factors_of` it one row of factors, or a
    second one for references.
    """
    requests = {id(each.request): each.request for each in passes}
    inputs = {key: inputs_of(request) for key, request in requests.items()}
    rows = {key: factors_of(request).split(1) for key, request in requests.items()}
    kinds = zip(*(rows[id(each.request)] for each in passes), strict=True)
    return PackedInput(
        image=torch.cat([part for each in passes for part in _image_row(each, inputs[id(each.request)])]),
        text=torch.cat([each.text for each in passes]),
        factors=torch.cat([row for kind in kinds for row in kind]),
        layout=layout,
        adapters=PassAdapters.of(
            [each.shape.text for each in passes],
            [each.shape.image_tokens for each in passes],
            [each.request.adapters for each in passes],
        ),
    )


def by_request(batch: Sequence[DenoiseInput], velocities: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield, for each request, the velocities of its images with each of its texts.

    `velocities` are those of the passes of all requests, in their order; a tensor has the shape of the
    request's latents.
    """
    start = 0
    for request in batch:
        num_images, num_tokens, _ = request.latents.shape
        by_text = []
        for _ in conditioning_of(request.conditioning).texts:
            images = [image[:num_tokens] for image in velocities[start : start + num_images]]
            by_text.append(images[0][None] if num_images == 1 else torch.stack(images))
            start += num_images
        yield by_text


def conditioning_of(conditioning: Conditioning) -> ImageConditioning:
    """Return the conditioning of a request of these families."""
    assert isinstance(conditioning, ImageConditioning)
    return conditioning


def _image_row(each: ImagePass, inputs: Tensor) -> list[Tensor]:
    """Return the tokens of a pass: of its image, then of its references."""
    references = conditioning_of(each.request.conditioning).references
    return [inputs[each.image]] if references is None else [inputs[each.image], references]

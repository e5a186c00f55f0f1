"""Input images as tensors, beside diffusers' `VaeImageProcessor`."""

import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from torch.nn import functional as F

from diffuserve.media.input_image import as_image, input_image
from diffuserve.models.pipelines.input_tensors import image_tensor, latent_mask, mask_tensor, masked_image

SIZES = [(64, 48), (16, 16), (40, 96), (128, 120)]


def noisy_image(mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> Image.Image:
    generator = torch.Generator().manual_seed(5)
    bands = [
        Image.frombytes(
            "L", size, bytes(torch.randint(256, (size[0] * size[1],), generator=generator).tolist())
        )
        for _ in mode
    ]
    return Image.merge(mode, bands) if len(bands) > 1 else bands[0]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pixels_are_the_references(width: int, height: int) -> None:
    image = input_image(noisy_image())
    wanted = VaeImageProcessor(vae_scale_factor=8).preprocess(as_image(image), height=height, width=width)
    assert torch.equal(image_tensor(image, width, height), wanted)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_masks_are_the_references(width: int, height: int) -> None:
    mask = input_image(noisy_image("L"), "L")
    processor = VaeImageProcessor(
        vae_scale_factor=8, do_normalize=False, do_binarize=True, do_convert_grayscale=True
    )
    wanted = processor.preprocess(as_image(mask), height=height, width=width)
    found = mask_tensor(mask, width, height)
    assert torch.equal(found, wanted)
    assert torch.equal(latent_mask(found, 8), F.interpolate(wanted, size=(height // 8, width // 8)))


def test_a_mask_changes_from_the_middle_of_gray_on() -> None:
    gray = Image.frombytes("L", (4, 1), bytes([0, 127, 128, 255]))
    assert mask_tensor(input_image(gray, "L"), 4, 1).flatten().tolist() == [0, 0, 1, 1]


def test_what_changes_is_hidden() -> None:
    pixels = image_tensor(input_image(noisy_image()), 16, 16)
    mask = torch.zeros(1, 1, 16, 16)
    mask[..., 8:] = 1
    hidden = masked_image(pixels, mask)
    assert torch.equal(hidden[..., :8], pixels[..., :8])
    assert not hidden[..., 8:].any()

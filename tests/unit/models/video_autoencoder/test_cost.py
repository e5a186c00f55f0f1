"""The price of a first frame is that of the encoder's work, whose operations are counted in real calls."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from diffuserve.domain.models.cost import ENCODED_PIXEL
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.video_autoencoder.blocks import CausalConv, FrameCache
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.decoder import VideoDecoder
from diffuserve.models.video_autoencoder.encoder import VideoEncoder

SIDE = 128
WAN_2_1 = VideoVaeConfig()
META = torch.device("meta")


def counted_operations(num_frames: int) -> tuple[int, int]:
    """Return the operations in which Wan 2.1's autoencoder encodes and decodes a clip."""
    with META:
        encoder, decoder = VideoEncoder(WAN_2_1).eval(), VideoDecoder(WAN_2_1).eval()
        pixels, gray = torch.empty(1, 3, SIDE, SIDE), torch.empty(4, 3, SIDE, SIDE)
        latents = torch.empty(1, WAN_2_1.z_dim, SIDE // WAN_2_1.scale, SIDE // WAN_2_1.scale)
    for layer in (*encoder.modules(), *decoder.modules()):
        if isinstance(layer, CausalConv):
            layer.prepare()
    num_latents = WAN_2_1.latent_frames(num_frames)
    encoder_cache: FrameCache = {}
    decoder_cache: FrameCache = {}
    with torch.inference_mode():
        with FlopCounterMode(display=False) as encoding:
            for chunk in [pixels, *[gray] * (num_latents - 1)]:
                encoder(chunk, encoder_cache)
        with FlopCounterMode(display=False) as decoding:
            for _ in range(num_latents):
                decoder(latents, decoder_cache)
    return encoding.get_total_flops(), decoding.get_total_flops()


def priced_share(num_frames: int, encodes_clip: bool) -> float:
    """Return what encoding is charged, as a share of what decoding is."""
    spec = dataclasses.replace(SPEC, encodes_clip=encodes_clip)
    image = InputImage.blank(SIDE, SIDE)
    params = GenerationParams(
        prompt="x", image=(image,), width=SIDE, height=SIDE, num_frames=num_frames, num_inference_steps=1
    )
    workload = spec.workload(params)
    return ENCODED_PIXEL * workload.input_pixels / workload.num_pixels


SPEC = ModelSpec(
    name="i2v",
    family="wan",
    width=SIDE,
    height=SIDE,
    num_inference_steps=1,
    max_sequence_length=1,
    longest_sequence_length=1,
    max_frames=81,
    temporal_stride=4,
    has_joint_attention=False,
    max_input_images=1,
    has_first_frame=True,
)


@pytest.mark.parametrize("num_frames", [5, 33])
def test_a_model_that_encodes_a_whole_clip_is_priced_for_it(num_frames: int) -> None:
    encoding, decoding = counted_operations(num_frames)
    share = encoding / decoding
    assert priced_share(num_frames, encodes_clip=True) == pytest.approx(share, rel=0.2)
    assert priced_share(num_frames, encodes_clip=False) < 0.4 * share  # as if it were one image


def test_an_image_alone_costs_the_same_whatever_the_length_of_the_clip() -> None:
    short, long = (priced_share(frames, encodes_clip=False) for frames in (5, 81))
    assert short > 10 * long


def test_more_frames_to_encode_raise_the_price() -> None:
    prices = [priced_share(frames, encodes_clip=True) for frames in (1, 5, 81)]
    assert prices == [ENCODED_PIXEL] * 3

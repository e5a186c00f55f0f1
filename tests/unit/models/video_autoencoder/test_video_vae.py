"""Wan's autoencoder beside diffusers' `AutoencoderKLWan`, on random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.video_processor import VideoProcessor
from PIL import Image
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.frames import Frames
from diffuserve.models.machine.cpu_products import cpu_has_bf16
from diffuserve.models.video_autoencoder import blocks as vae_blocks
from diffuserve.models.video_autoencoder import cost as vae_cost
from diffuserve.models.video_autoencoder.blocks import FrameCache
from diffuserve.models.video_autoencoder.video_vae import VideoVae, vae_dtype
from diffuserve.models.weights.load_plan import LoadPlan
from support.live_tensors import LiveTensors
from support.wan_vae import TINY, WAN_21, WAN_22, make_wan_vae, save_wan_vae

CPU = torch.device("cpu")
ALL = pytest.mark.parametrize("config", [WAN_21, WAN_22, TINY], ids=["wan-2.1", "wan-2.2", "tiny"])


def load(
    config: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float32
) -> tuple[AutoencoderKLWan, VideoVae]:
    reference = make_wan_vae(config, dtype)
    return reference, VideoVae(save_wan_vae(reference, folder), LoadPlan(CPU, dtype))


def latents_of(frames: int, rows: int = 3, columns: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(1, 4, frames, rows, columns, generator=torch.Generator().manual_seed(seed))


def pixels_of(vae: VideoVae) -> Tensor:
    size = (2 * vae.config.scale, 3 * vae.config.scale)
    return torch.rand(1, 3, 1, *size, generator=torch.Generator().manual_seed(2)) * 2 - 1


def scale_of(reference: AutoencoderKLWan, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return the means of the latents, and what they are multiplied by, as the pipelines of diffusers do."""
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (reference.config.latents_mean, reference.config.latents_std)
    )
    return [mean.to(dtype), (1.0 / std).to(dtype)]


def scaled(reference: AutoencoderKLWan, latents: Tensor) -> Tensor:
    mean, factor = scale_of(reference, latents.dtype)
    return latents / factor + mean


def normalized(reference: AutoencoderKLWan, pixels: Tensor) -> Tensor:
    mean, factor = scale_of(reference)
    mode: Tensor = reference.encode(pixels).latent_dist.mode()
    return (mode - mean) * factor


def decoded(reference: AutoencoderKLWan, vae: VideoVae, latents: Tensor) -> list[Tensor]:
    """Return the pixels of each chunk, (frames, height, width, 3), before they are rounded."""
    cache: FrameCache = {}
    return [vae.decoder(frame, cache) for frame in scaled(reference, latents).unbind(2)]


def wanted_pixels(reference: AutoencoderKLWan, latents: Tensor) -> Tensor:
    pixels: Tensor = reference.decode(scaled(reference, latents)).sample
    return pixels[0].permute(1, 2, 3, 0)


def frames_of(vae: VideoVae, latents: Tensor) -> Frames:
    return [frame for chunk in vae.decode_chunks(latents) for frame in chunk]


def as_bytes(frames: Frames) -> list[bytes]:
    return [frame.tobytes() for frame in frames]


def level_difference(found: Image.Image, wanted: Image.Image) -> int:
    return int(np.abs(np.asarray(found, dtype=int) - np.asarray(wanted, dtype=int)).max())


@ALL
@torch.inference_mode()
def test_the_chunks_of_a_clip_equal_the_references_decode(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    chunks, wanted = decoded(reference, vae, latents_of(5)), wanted_pixels(reference, latents_of(5))
    assert [len(chunk) for chunk in chunks] == [1, 4, 4, 4, 4]
    assert wanted.std() > 0.1
    torch.testing.assert_close(torch.cat(chunks), wanted, atol=1e-5, rtol=0)


@ALL
@torch.inference_mode()
def test_in_bfloat16_the_decode_is_as_near_as_the_references(config: dict[str, Any], tmp_path: Path) -> None:
    exact = wanted_pixels(make_wan_vae(config), latents_of(3))
    reference, vae = load(config, tmp_path, torch.bfloat16)
    latents = latents_of(3).bfloat16()
    found = torch.cat(decoded(reference, vae, latents)).float()
    wanted = wanted_pixels(reference, latents).float()
    assert (found - exact).square().mean() < 1.5 * (wanted - exact).square().mean()


@ALL
@torch.inference_mode()
def test_frames_leave_as_diffusers_makes_them(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    video = reference.decode(scaled(reference, latents_of(3))).sample
    wanted = VideoProcessor().postprocess_video(video, output_type="pil")[0]
    found = frames_of(vae, latents_of(3))
    assert [(frame.size, frame.mode) for frame in found] == [(frame.size, "RGB") for frame in wanted]
    differences = [level_difference(*pair) for pair in zip(found, wanted, strict=True)]
    assert max(differences) <= 1, "values that lie between two levels may round to either"


@ALL
@torch.inference_mode()
def test_encoded_images_and_clips_equal_the_references(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    pixels = pixels_of(vae)
    found = vae.encode_image(pixels[:, :, 0])
    torch.testing.assert_close(found, normalized(reference, pixels), atol=1e-5, rtol=0)
    clip = torch.cat([pixels, torch.zeros_like(pixels).expand(-1, -1, 16, -1, -1)], dim=2)
    found = vae.encode_clip(pixels[:, :, 0], num_frames=17)
    assert found.shape == (1, 4, 5, 2, 3)
    torch.testing.assert_close(found, normalized(reference, clip), atol=1e-5, rtol=0)


@ALL
@torch.inference_mode()
def test_the_frames_of_several_latents_are_those_of_each_alone(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """The first frame of a clip depends on its first latent frame alone."""
    _, vae = load(config, tmp_path)
    clips = [latents_of(3, seed=1), latents_of(3, seed=2)]
    together = vae.decode_first(torch.cat(clips))
    assert all(
        level_difference(frame, next(vae.decode_chunks(clip))[0]) <= 1
        for frame, clip in zip(together, clips, strict=True)
    )
    assert as_bytes(vae.decode_first(clips[0])) == as_bytes(next(vae.decode_chunks(clips[0])))


@ALL
def test_a_clip_is_the_same_whatever_is_decoded_before_or_beside(
    config: dict[str, Any], tmp_path: Path
) -> None:
    _, vae = load(config, tmp_path)
    clips = [latents_of(3, seed=1), latents_of(4, rows=5, columns=3, seed=2)]
    alone = [as_bytes(frames_of(vae, clip)) for clip in clips]
    first, second = (vae.decode_chunks(clip) for clip in clips)
    beside: list[list[bytes]] = [[], []]
    for turn in (1, 0, 1, 1, 0, 0, 1):
        beside[turn] += as_bytes(next((first, second)[turn]))
    assert beside == alone
    assert as_bytes(frames_of(vae, clips[0][:, :, :2])) == alone[0][:5], "later frames change no earlier one"


@pytest.mark.parametrize(
    ("config", "lengths"),
    [(WAN_21, (3, 5)), (WAN_22, (3, 5)), (TINY, (5, 21))],
    ids=["wan-2.1", "wan-2.2", "tiny"],
)
def test_memory_is_that_of_a_chunk_and_the_cache_however_long_the_clip(
    config: dict[str, Any], lengths: tuple[int, int], tmp_path: Path
) -> None:
    _, vae = load(config, tmp_path)
    size = (3 * vae.config.scale, 4 * vae.config.scale)
    peaks = []
    for latents in [latents_of(length, rows=4, columns=3) for length in lengths]:
        with LiveTensors() as live:
            chunks = vae.decode_chunks(latents)
            next(chunks), next(chunks)
            assert live.now == vae_cost.cache_bytes(vae.config, *size)
            for _ in chunks:
                pass
        assert live.now == 0
        peaks.append(live.peak)
    assert peaks[0] == peaks[1]
    assert 0.99 < vae_cost.decode_bytes(vae.config, *size) / peaks[0] < 1.2


def test_a_closed_iterator_keeps_nothing(tmp_path: Path) -> None:
    _, vae = load(TINY, tmp_path)
    with LiveTensors() as live:
        chunks = vae.decode_chunks(latents_of(5))
        next(chunks), next(chunks)
        assert live.now > 0
        chunks.close()  # type: ignore[attr-defined]
        assert live.now == 0


@torch.inference_mode()
def test_large_frames_are_convolved_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, vae = load(WAN_22, tmp_path)
    wanted = torch.cat(decoded(reference, vae, latents_of(3)))
    with LiveTensors() as live:
        decoded(reference, vae, latents_of(3))
    monkeypatch.setattr(vae_blocks, "MAX_STACKED", 1)
    with LiveTensors() as less:
        found = torch.cat(decoded(reference, vae, latents_of(3)))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    assert less.peak < live.peak


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_pixels_that_are_not_finite_are_an_error(bad: float, tmp_path: Path) -> None:
    _, vae = load(TINY, tmp_path)
    latents = latents_of(2)
    latents[0, 0, 1, 0, 0] = bad
    chunks = vae.decode_chunks(latents)
    assert len(next(chunks)) == 1
    with pytest.raises(FloatingPointError, match="not finite"):
        next(chunks)


def test_the_autoencoder_is_in_float32_unless_the_folder_says_otherwise(tmp_path: Path) -> None:
    folder = save_wan_vae(make_wan_vae(TINY), tmp_path)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert vae_dtype(folder, gpu) is torch.float32
    (tmp_path / "diffuserve.json").write_text('{"vae_dtype": "bfloat16"}')
    assert vae_dtype(type(folder)(tmp_path), gpu) is torch.bfloat16
    assert vae_dtype(type(folder)(tmp_path), cpu) is (torch.bfloat16 if cpu_has_bf16() else torch.float32)
    (tmp_path / "diffuserve.json").write_text('{"vae_dtype": "half"}')
    with pytest.raises(InvalidModel, match="vae_dtype='half' must be one of float32"):
        vae_dtype(type(folder)(tmp_path), gpu)

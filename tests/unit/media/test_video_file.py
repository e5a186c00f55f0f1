"""Formats of clips, and what each can hold."""

import subprocess
import sys

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.media.video_file import VIDEO_FORMATS, check_clip
from diffuserve.storage.base import content_type_of


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_small_clips_fit_every_format(name: str) -> None:
    check_clip(name, 96, 96, 17, 16)
    assert content_type_of(f"0{VIDEO_FORMATS[name].suffix}") == VIDEO_FORMATS[name].media_type


@pytest.mark.parametrize(
    ("name", "clip", "remedy"),
    [
        ("png", (96, 96, 17, 16), "mp4, webm, gif, webp"),
        ("webm", (48, 96, 17, 16), "from 64 pixels a side, not 48x96; take mp4"),
        ("gif", (96, 96, 17, 60), "at most 50 frames a second, not 60"),
        ("gif", (832, 480, 81, 16), "at most 16,777,216 pixels .* not 32,348,160; .* at most 42 frames"),
        ("webp", (832, 480, 43, 16), "take mp4, or at most 42 frames of this size"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_with_a_remedy(
    name: str, clip: tuple[int, int, int, int], remedy: str
) -> None:
    with pytest.raises(InvalidParams, match=remedy) as refused:
        check_clip(name, *clip)
    assert refused.value.field == "output_format"


def test_the_largest_clip_of_a_format_fits_it() -> None:
    check_clip("webp", 832, 480, 42, 16)
    check_clip("mp4", 1280, 720, 10_000, 120)


def test_the_control_plane_loads_no_encoder_and_an_encoder_no_torch() -> None:
    code = (
        "import sys, diffuserve.media.video_file; assert 'av' not in sys.modules;"
        "import diffuserve.media.video_writer; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

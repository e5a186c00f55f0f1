"""The last frame of a clip in each format."""

from pathlib import Path

import pytest
from PIL import Image

from diffuserve.media.last_frame import last_frame
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.media.video_writer import save_video
from support.image_files import image_in


@pytest.mark.parametrize("name", VIDEO_FORMATS)
def test_the_last_frame_is_read(name: str, tmp_path: Path) -> None:
    colors = [(250, 10, 10), (10, 10, 250), (10, 240, 10)]
    clip = tmp_path / f"clip{VIDEO_FORMATS[name].suffix}"
    save_video([Image.new("RGB", (80, 64), color) for color in colors], clip, 8)
    image = image_in(last_frame(clip.read_bytes(), VIDEO_FORMATS[name].media_type))
    red, green, blue = image.getpixel((30, 20))  # type: ignore[misc]
    assert image.size == (80, 64)
    assert green > 200 > 80 > max(red, blue)


def test_what_is_no_clip_is_refused() -> None:
    for name in ("mp4", "gif"):
        with pytest.raises((ValueError, OSError)):
            last_frame(b"no clip", VIDEO_FORMATS[name].media_type)

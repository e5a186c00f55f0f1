"""Equal frames are equal files, in every process: also where fresh memory holds other bytes."""

import hashlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image

from diffuserve.media.image_file import save_image
from diffuserve.media.live_stream import LiveStream
from diffuserve.media.sprite_sheet import SpriteSheet
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.media.video_writer import save_video
from diffuserve.media.x264 import codec_options

PARAMETERS = {"prompt": "ein roter Kreis", "seed": 7}
NUM_FRAMES, FPS = 6, 16
SIZE = (480, 272)  # of x264's blocks a number that fills none of its AVX-512 registers
FRESH_BYTES = ("1", "254")  # with which glibc fills the memory that it hands out


def drifting_noise(num_frames: int = NUM_FRAMES, size: tuple[int, int] = SIZE) -> list[Image.Image]:
    """Return frames of soft noise that drifts, whose motion an encoder follows."""
    width, height = size
    coarse = np.random.default_rng(0).integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    large = Image.fromarray(coarse).resize((width + 2 * num_frames, height + num_frames))
    return [large.crop((2 * n, n, 2 * n + width, n + height)) for n in range(num_frames)]


def hashes(folder: Path) -> list[str]:
    """Encode the frames in every way, and return a hash of each file."""
    frames = drifting_noise()
    contents = [_clip(frames, folder / f"clip.{name}") for name in VIDEO_FORMATS]
    contents += [_live(frames), _poster(frames[0], folder), _sprites(frames)]
    return [hashlib.sha256(content).hexdigest() for content in contents]


def _clip(frames: Sequence[Image.Image], path: Path) -> bytes:
    save_video(frames[:4] if path.suffix in (".gif", ".webp") else frames, path, FPS, PARAMETERS)
    return path.read_bytes()


def _live(frames: Sequence[Image.Image]) -> bytes:
    stream = LiveStream(FPS)
    return stream.add(frames) + stream.finish()


def _poster(frame: Image.Image, folder: Path) -> bytes:
    save_image(frame, folder / "poster.webp", PARAMETERS, quality=85, method=1)
    return (folder / "poster.webp").read_bytes()


def _sprites(frames: Sequence[Image.Image]) -> bytes:
    sheet, buffer = SpriteSheet(len(frames)), io.BytesIO()
    sheet.add(frames)
    sheet.image().save(buffer, format="WEBP")
    return buffer.getvalue()


def test_equal_frames_are_equal_files_whatever_fresh_memory_holds(tmp_path: Path) -> None:
    processes = []
    for fresh in FRESH_BYTES:
        (folder := tmp_path / fresh).mkdir()
        command = [sys.executable, str(Path(__file__)), str(folder)]
        environment = {"MALLOC_PERTURB_": fresh, "PYTHONPATH": ":".join(sys.path)}
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    written = [process.communicate()[0].split() for process in processes]
    assert len(written[0]) == len(VIDEO_FORMATS) + 3
    assert all(files == written[0] for files in written[1:])


def test_only_avx512_is_left_out() -> None:
    assert codec_options(frozenset({"sse2", "avx2"})) == {}
    assert codec_options(frozenset()) == {}  # of another processor than x86, or another system
    assert "AVX512" not in codec_options(frozenset({"avx2", "avx512f"}))["x264-params"].split("=")[1]


def test_the_encoder_knows_the_names(tmp_path: Path) -> None:
    av.logging.set_level(av.logging.WARNING)
    with av.logging.Capture() as messages:
        save_video(drifting_noise(2), tmp_path / "clip.mp4", FPS)
    av.logging.set_level(None)
    assert not [message for message in messages if "rror" in message[2]]


if __name__ == "__main__":
    print(*hashes(Path(sys.argv[1])), sep="\n")

"""The files of one clip: the clip itself, a poster and a sprite sheet, written as its frames come."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL.Image import Image

from diffuserve.media.image_file import save_image
from diffuserve.media.sprite_sheet import SpriteSheet
from diffuserve.media.video_writer import VideoWriter
from diffuserve.models.frames import Frames, Sound
from diffuserve.protocol.messages import FinishedFile
from diffuserve.safety.image import cells_of, from_cells
from diffuserve.storage.base import content_type_of


@dataclass(frozen=True, kw_only=True)
class ClipPlan:
    """The clip `index` of a request, and how its files are made."""

    index: int
    seed: int
    num_frames: int
    fps: int
    folder: Path
    output_format: str
    origin: Mapping[str, Any]
    sound: Sound | None = None


class ClipFiles:
    """Writes the files of one clip. A clip that is to be blurred is blurred from its first frame on.

    It is silent then. For that it keeps the few colors that a blurred frame would have, of each frame that it
    wrote.
    """

    def __init__(self, plan: ClipPlan) -> None:
        self._plan = plan
        self._cells: list[Image] = []
        self._written: list[Path] = []
        self.poster: Image | None = None
        self.seconds = 0.0
        self._begin(plan.sound)

    def add(self, frames: Frames, is_blurred: bool) -> None:
        """Write the next frames, of a clip that is blurred or not; once it is, it stays so."""
        start = time.perf_counter()
        cells = [cells_of(frame) for frame in frames]
        if is_blurred and not self.is_blurred:
            self._begin_again_blurred([*self._cells, *cells], frames[0].size)
        else:
            self._write([from_cells(few, frames[0].size) for few in cells] if is_blurred else frames)
        self._cells += cells
        self.seconds += time.perf_counter() - start

    def finish(self) -> list[FinishedFile]:
        """Complete the files, and describe them: the clip, its poster, its sprite sheet."""
        start = time.perf_counter()
        self._written.append(self._video.path)
        self._video.close()
        assert self.poster is not None
        poster = self._save(self.poster, "poster")
        sprites = self._save(self._sprites.image(), "sprites", num_frames=self._sprites.num_cells)
        self.seconds += time.perf_counter() - start
        return [self._file(self._video.path, self.poster, "video", self._video.num_frames), poster, sprites]

    def abandon(self) -> None:
        """Remove what was written."""
        self._video.abandon()
        for path in self._written:
            path.unlink(missing_ok=True)

    def _begin(self, sound: Sound | None) -> None:
        plan = self._plan
        path = plan.folder / f"{plan.index}.{plan.output_format}"
        self._video = VideoWriter(path, plan.fps, plan.origin, sound)
        self._sprites = SpriteSheet(plan.num_frames)
        self.poster = None
        self._num_written = 0
        self.is_blurred = False

    def _begin_again_blurred(self, cells: list[Image], size: tuple[int, int]) -> None:
        self._video.abandon()
        self._begin(sound=None)
        self.is_blurred = True
        for few in cells:
            self._write([from_cells(few, size)])

    def _write(self, frames: Frames) -> None:
        self._keep_poster(frames)
        self._video.write(frames)
        self._sprites.add(frames)

    def _keep_poster(self, frames: Frames) -> None:
        """Keep the middle frame, as clips often fade in; of one that ends before it, the last frame."""
        place = self._plan.num_frames // 2 - self._num_written
        self._num_written += len(frames)
        if frames and place >= 0:
            self.poster = frames[min(place, len(frames) - 1)]

    def _save(self, image: Image, role: str, num_frames: int | None = None) -> FinishedFile:
        path = self._plan.folder / f"{self._plan.index}-{role}.webp"
        self._written.append(path)
        save_image(image, path, self._plan.origin, quality=85, method=1)
        return self._file(path, image, role, num_frames)

    def _file(self, path: Path, image: Image, role: str, num_frames: int | None) -> FinishedFile:
        is_video = role == "video"
        sound = self._video.sound if is_video else None
        return FinishedFile(
            path=str(path),
            name=path.name,
            content_type=content_type_of(path.name),
            width=image.width,
            height=image.height,
            index=self._plan.index,
            role=role,
            seed=self._plan.seed if is_video else None,
            num_frames=num_frames,
            fps=self._plan.fps if is_video else None,
            channels=None if sound is None else sound.num_channels,
            sample_rate=None if sound is None else sound.sample_rate,
        )

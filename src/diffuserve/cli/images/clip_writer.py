"""Writing the clips of requests as their frames come, past the image filter, as a worker does."""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from PIL import Image

from diffuserve.cli.display.console import Console
from diffuserve.cli.images.inline_images import show_image
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.outputs import FrameChunk
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.engine_process.output.video_output import VideoOutput
from diffuserve.protocol.messages import AddJob, FinishedFile

NameFile = Callable[[dict[str, Any]], Path]
"""Returns the path for the clip of these parameters."""


class ClipWriter:
    """Writer of clips into a folder beside their destination, from where they move when they are whole.

    Used by one thread. What the filter blocks, or the disk refuses, is raised again when the request ends.
    """

    def __init__(self, folder: Path, image_output: ImageOutput, output_format: str, console: Console) -> None:
        self._folder, self._images = folder, image_output
        self._format, self._console = output_format, console
        self._outputs: dict[int, VideoOutput] = {}
        self._resources = ExitStack()
        self.warnings: dict[int, list[str]] = {}
        self._posters: dict[int, list[tuple[Image.Image, str]]] = {}

    def add(self, index: int, params: GenerationParams, chunk: FrameChunk) -> None:
        """Write the next frames of the clips of request `index`."""
        output = self._outputs.get(index) or self._open(index, params)
        if output.failure is not None:
            return
        try:
            output.add(chunk)
            if chunk.is_last:
                output.take_judgement()
        except Exception as error:  # told with the request's result
            output.failure = error
            output.abandon()

    def finish(self, index: int, name_file: NameFile) -> list[Path]:
        """Move the clips of a request to the paths that `name_file` gives them; return those in order.

        Raise what its frames failed with.
        """
        output = self._outputs.pop(index)
        if output.failure is not None:
            raise output.failure
        self.warnings[index] = output.warnings
        files = sorted(output.finish(), key=lambda file: file.index)
        caption = f"{output.params.prompt} ({output.params.num_frames} frames)"
        self._posters[index] = [(_read(file), caption) for file in files if file.role == "poster"]
        for file in files:
            if file.role == "sprites":
                show_image(self._console, _read(file))
        return [self._place(output, file, name_file) for file in files if file.role == "video"]

    def captioned_posters(self) -> list[tuple[Image.Image, str]]:
        """Return the posters of all clips, in the order of their requests, each with a caption."""
        return [poster for index in sorted(self._posters) for poster in self._posters[index]]

    def close(self) -> None:
        """Remove what was not finished."""
        self._resources.close()

    def _open(self, index: int, params: GenerationParams) -> VideoOutput:
        folder = self._resources.enter_context(
            tempfile.TemporaryDirectory(dir=self._folder, prefix=".clips-")
        )
        job = AddJob(attempt=str(index), input={}, folder=folder, output_format=self._format)
        output = self._outputs[index] = VideoOutput(self._images, str(index), job, params)
        return output

    def _place(self, output: VideoOutput, file: FinishedFile, name_file: NameFile) -> Path:
        origin = dict(self._images.origin(output.params, file.index))
        seed = (output.params.seed or 0) + file.index
        path = name_file(origin or {"prompt": output.params.prompt, "seed": seed})
        os.replace(file.path, path)
        return path


def _read(file: FinishedFile) -> Image.Image:
    with Image.open(file.path) as opened:
        return opened.convert("RGB")

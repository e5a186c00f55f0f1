"""From a finished request to the files that its client gets: past the filter, and with their origin."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from PIL.Image import Image

from diffuserve.domain.errors import OutputBlocked, RequestFailed
from diffuserve.domain.safety import PASSES, Action, ImagesRecord, Verdict
from diffuserve.engine.outputs import GenerationResult
from diffuserve.media.image_file import save_image
from diffuserve.media.provenance import provenance
from diffuserve.models.fingerprint import hash_weights
from diffuserve.models.folder import open_model
from diffuserve.safety.base import ImageFilter
from diffuserve.safety.image import blur, check_frames
from diffuserve.safety.image_filters import open_image_filter
from diffuserve.storage.base import content_type_of
from diffuserve.worker.config import ImageOptions
from diffuserve.worker.messages import FinishedFile

THUMBNAIL_PIXELS = 256
T = TypeVar("T")


@dataclass(frozen=True)
class Judgement:
    """What the filter says of one image, and how many seconds it looked at it."""

    verdict: Verdict
    seconds: float


@dataclass(frozen=True)
class ImageOutput:
    """Where images are looked at and written: none leaves the engine but over it. Safe from any thread.

    `model_hash` may still be on its way; `None` in its place leaves it out of the files.
    """

    image_filter: ImageFilter | None
    model: str
    model_hash: "Future[str | None] | None" = None
    has_metadata: bool = True

    def describe(self) -> str:
        """The filter, its version and its thresholds, for people to read."""
        if self.image_filter is None:
            return "none"
        filter_info = self.image_filter.info
        thresholds = ", ".join(f"{label} from {score:g}" for label, score in filter_info.thresholds.items())
        return f"{filter_info.name} {filter_info.version} ({thresholds})"

    def judge(self, frames: Sequence[Image]) -> Judgement:
        """One image, or the frames of one video. A filter that fails lets nothing pass: it raises."""
        if self.image_filter is None:
            return Judgement(PASSES, 0.0)
        start = time.perf_counter()
        try:
            verdict = check_frames(self.image_filter, frames)
        except Exception as error:  # whatever it is, another worker's filter may be well
            name, reason = self.image_filter.info.name, f"{type(error).__name__}: {error}"
            raise RuntimeError(f"the image filter {name} failed ({reason})") from error
        return Judgement(verdict, time.perf_counter() - start)

    def screened(self, result: GenerationResult) -> GenerationResult:
        """What may be shown of a result. Raises `OutputBlocked`, and `RequestFailed` for a broken filter."""
        try:
            verdicts = [self.judge(frames).verdict for frames in result.frames]
        except RuntimeError as error:
            raise RequestFailed(result.request_id, str(error)) from error
        return passed(result, verdicts)

    def write(self, result: GenerationResult, folder: Path, output_format: str) -> tuple[FinishedFile, ...]:
        """The images of a result that has passed, and a thumbnail of the first."""
        files = []
        for index, image in enumerate(result.images):
            path = folder / f"{index}.{output_format}"
            save_image(image, path, self.origin(result, index))
            files.append(_file(path, image, index, result.seed + index))
        return (*files, self._thumbnail(result.images[0], folder, self.origin(result, 0)))

    def record(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """For the result of a job; empty where nothing looked."""
        if self.image_filter is None:
            return {}
        return {"image": ImagesRecord(self.image_filter.info, tuple(verdicts)).to_dict()}

    def origin(self, result: GenerationResult, index: int) -> Mapping[str, Any]:
        """What a file of image `index` says of itself; nothing where files are kept silent."""
        if not self.has_metadata:
            return {}
        model_hash = None if self.model_hash is None else self.model_hash.result()
        return provenance(result.params.to_dict(), index, self.model, model_hash)

    def _thumbnail(self, image: Image, folder: Path, origin: Mapping[str, Any]) -> FinishedFile:
        small = image.copy()
        small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        path = folder / "thumbnail.webp"
        save_image(small, path, origin, quality=80, method=1)
        return _file(path, small, 0, None, role="thumbnail")


def passed(result: GenerationResult, verdicts: Sequence[Verdict]) -> GenerationResult:
    """Each image as its verdict allows, with a warning where that is less than all of it.

    Raises `OutputBlocked` where one image may not be shown: then none of the request is.
    """
    for verdict in verdicts:
        if verdict.action is Action.BLOCK:
            reason = f"an image is blocked by the image filter (category {verdict.category!r})"
            raise OutputBlocked(result.request_id, reason, verdict.category)
    pairs = zip(result.frames, verdicts, strict=True)
    frames = [[allowed(frame, verdict) for frame in shown] for shown, verdict in pairs]
    return replace(result, frames=frames, warnings=(*result.warnings, *_warnings(verdicts)))


def allowed(image: Image, verdict: Verdict) -> Image:
    """The image, or what may be shown of it; not for one that is blocked."""
    assert verdict.action is not Action.BLOCK
    return blur(image) if verdict.action is Action.BLUR else image


def _warnings(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for index, verdict in enumerate(verdicts):
        if verdict.action is Action.BLUR:
            yield f"image {index} was blurred by the image filter (category {verdict.category!r})"


def open_desk(model: str, options: ImageOptions) -> ImageOutput:
    """Load the filter; the weights' hash follows by itself. Raises `InvalidParams` for a wrong filter."""
    image_filter = open_image_filter(options.image_filter, options.image_rules)
    folder = open_model(model)
    model_hash = in_background(partial(_hash, folder.path)) if options.file_metadata else None
    return ImageOutput(image_filter, folder.name, model_hash, options.file_metadata)


def in_background(work: Callable[[], T]) -> "Future[T]":
    """On a thread of its own that holds up no exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # for whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="diffuserve-background", daemon=True).start()
    return future


def _hash(folder: Path) -> str | None:
    try:
        return hash_weights(folder)
    except OSError:  # the model is loaded: images without its hash are better than none
        return None


def _file(path: Path, image: Image, index: int, seed: int | None, role: str = "image") -> FinishedFile:
    return FinishedFile(
        path=str(path),
        name=path.name,
        content_type=content_type_of(path.name),
        width=image.width,
        height=image.height,
        index=index,
        role=role,
        seed=seed,
    )

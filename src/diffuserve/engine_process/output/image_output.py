"""The files of a finished request: its images as the image filter allows them, with their provenance."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL.Image import Image

from diffuserve.domain.errors import OutputBlocked, OutputNotWritten, RequestFailed
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import PASSES, Action, ImagesRecord, SafetyStage, Verdict
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.clip_screen import Judgement
from diffuserve.media.image_file import save_image
from diffuserve.media.transparency import views
from diffuserve.models.folders.folder import open_model
from diffuserve.models.frames import Sound
from diffuserve.models.weights.fingerprint import fingerprint, hash_weights
from diffuserve.protocol.config import ImageOptions
from diffuserve.protocol.messages import FinishedFile
from diffuserve.safety.base import ImageFilter, SoundJudge
from diffuserve.safety.image import blur, check_frames
from diffuserve.safety.image_filters import open_image_filter
from diffuserve.safety.sound_judges import open_sound_judge
from diffuserve.storage.base import content_type_of
from diffuserve.version import __version__

if TYPE_CHECKING:
    from diffuserve.models.pipelines.base import Pipeline

THUMBNAIL_PIXELS = 256
T = TypeVar("T")


@dataclass(frozen=True)
class ImageOutput:
    """Filters and writes images; every image that leaves the engine passes it. Safe from any thread.

    `model_hash` may still be computed when images are first written, which then waits for it; without a
    future, or if its result is `None`, files name no hash. Of clips the filter judges the first and the last
    frame, and one in `frames_every` between; of images with transparency all that they show. With
    `has_layers` the images of a request are layers, of one seed. Sounds that nothing judges leave only beside
    no image filter, or if that is allowed.
    """

    image_filter: ImageFilter | None
    model: str
    model_hash: "Future[str | None] | None" = None
    has_metadata: bool = True
    folder: Path = Path()
    frames_every: int = 1
    sound_judge: SoundJudge | None = None
    allows_unjudged_sounds: bool = False
    quantization: Quantization = Quantization.NONE
    has_layers: bool = False

    def of(self, pipeline: "Pipeline") -> "ImageOutput":
        """Return the output of a loaded model."""
        return replace(self, quantization=pipeline.quantization, has_layers=pipeline.spec.has_layers)

    def describe(self) -> str:
        """Return the filter's name, version and thresholds, for people to read."""
        if self.image_filter is None:
            return "none"
        filter_info = self.image_filter.info
        thresholds = ", ".join(f"{label} from {score:g}" for label, score in filter_info.thresholds.items())
        return f"{filter_info.name} {filter_info.version} ({thresholds})"

    def judge(self, frames: Sequence[Image]) -> Judgement:
        """Check one image, or the frames of one video. Raise `RuntimeError` if the filter fails."""
        if self.image_filter is None:
            return Judgement(PASSES, 0.0)
        start = time.perf_counter()
        try:
            seen = list(views(frames[0])) if len(frames) == 1 else frames
            verdict = check_frames(self.image_filter, seen, 1 if len(frames) == 1 else self.frames_every)
        except Exception as error:  # any error is retryable: another worker's filter may work
            name, reason = self.image_filter.info.name, f"{type(error).__name__}: {error}"
            raise RuntimeError(f"the image filter {name} failed ({reason})") from error
        return Judgement(verdict, time.perf_counter() - start)

    @property
    def lets_sounds_out(self) -> bool:
        """True if sounds may leave, once the judge has passed them if there is one."""
        return self.sound_judge is not None or self.allows_unjudged_sounds or self.image_filter is None

    def judge_sound(self, sound: Sound) -> Judgement:
        """Check a sound. Raise `RuntimeError` if the judge fails."""
        if self.sound_judge is None:
            return Judgement(PASSES, 0.0)
        start = time.perf_counter()
        try:
            verdict = self.sound_judge.check(sound.samples, sound.sample_rate)
        except Exception as error:  # any error is retryable, as an image filter's is
            name, reason = self.sound_judge.info.name, f"{type(error).__name__}: {error}"
            raise RuntimeError(f"the judge of sounds {name} failed ({reason})") from error
        return Judgement(verdict, time.perf_counter() - start)

    def screened(self, result: GenerationResult) -> GenerationResult:
        """Return what may be shown of a result.

        Raise `OutputBlocked` if the filter blocks an image, `RequestFailed` if the filter fails.
        """
        try:
            verdicts = [self.judge(frames).verdict for frames in result.frames]
        except RuntimeError as error:
            raise RequestFailed(result.request_id, str(error)) from error
        return passed(result, verdicts)

    def write(self, result: GenerationResult, folder: Path, output_format: str) -> tuple[FinishedFile, ...]:
        """Write the images of a result that passed the filter, and a thumbnail of the first."""
        files = []
        for index, image in enumerate(result.images):
            path = folder / f"{index}.{output_format}"
            save_image(image, path, self.origin(result.params, index), result.params.output_quality)
            files.append(_file(path, image, index, self.seed_of(result, index)))
        return (*files, self.thumbnail(result.images[0], folder, self.origin(result.params, 0)))

    def seed_of(self, result: GenerationResult, index: int) -> int:
        """Return the seed of image `index`: the next one for each, but one for all layers."""
        return result.seed if self.has_layers else result.seed + index

    def record(self, verdicts: Sequence[Verdict] | None, of_sounds: Sequence[Verdict] = ()) -> dict[str, Any]:
        """Return the filters' records for the result of a job; empty without filters."""
        record = {}
        if self.image_filter is not None and verdicts is not None:
            of_images = ImagesRecord(self.image_filter.info, tuple(verdicts))
            record[SafetyStage.IMAGE.value] = of_images.to_dict()
        if self.sound_judge is not None and of_sounds:
            record[SafetyStage.SOUND.value] = ImagesRecord(self.sound_judge.info, tuple(of_sounds)).to_dict()
        return record

    def weights_hash(self) -> str:
        """Return the hash of the model's weights, which is computed unless it has been. Raise `OSError`."""
        known = None if self.model_hash is None else self.model_hash.result()
        return known or _hash_of(self.folder)

    def fingerprint(self) -> str:
        """Return what tells the weights apart, however they are kept in memory. Raise `OSError`."""
        return fingerprint(self.weights_hash(), self.quantization)

    def origin(self, params: GenerationParams, index: int) -> Mapping[str, Any]:
        """Return the provenance that the file of image or clip `index` carries; empty without metadata."""
        if not self.has_metadata:
            return {}
        model_hash = None if self.model_hash is None else self.model_hash.result()
        quantization = None if self.quantization is Quantization.NONE else self.quantization.value
        image = None if self.has_layers else index
        return provenance(params.to_dict(), image, self.model, model_hash, quantization)

    def thumbnail(self, image: Image, folder: Path, origin: Mapping[str, Any]) -> FinishedFile:
        """Write a small copy of an image that passed the filter."""
        small = image.copy()
        small.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        path = folder / "thumbnail.webp"
        save_image(small, path, origin, quality=80, method=1)
        return _file(path, small, 0, None, role="thumbnail")


def passed(result: GenerationResult, verdicts: Sequence[Verdict]) -> GenerationResult:
    """Return the result with each image as its verdict allows, and a warning for each that is blurred.

    Raise `OutputBlocked` if any image is blocked: then no image of the request is shown.
    """
    for verdict in verdicts:
        if verdict.action is Action.BLOCK:
            reason = f"an image is blocked by the image filter (category {verdict.category!r})"
            raise OutputBlocked(result.request_id, reason, verdict.category)
    pairs = zip(result.media, verdicts, strict=True)
    media = [
        replace(shown, frames=[allowed(frame, verdict) for frame in shown.frames]) for shown, verdict in pairs
    ]
    noun = "clip" if (result.params.num_frames or 1) > 1 else "image"
    return replace(result, media=media, warnings=(*result.warnings, *blur_warnings(verdicts, noun)))


def allowed(image: Image, verdict: Verdict) -> Image:
    """Return the image, blurred if its verdict says so; it must not be a blocked one."""
    assert verdict.action is not Action.BLOCK
    return blur(image) if verdict.action is Action.BLUR else image


def blur_warnings(verdicts: Sequence[Verdict], noun: str) -> Iterator[str]:
    """Yield a warning for each image or clip, as the `noun` says, that is blurred."""
    for index, verdict in enumerate(verdicts):
        if verdict.action is Action.BLUR:
            yield f"{noun} {index} was blurred by the image filter (category {verdict.category!r})"


@contextmanager
def writing(request_id: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Raise `OutputNotWritten` for errors of the disk, or for those of these classes."""
    try:
        yield
    except errors as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise OutputNotWritten(request_id, f"its files cannot be written ({reason})") from error


def open_image_output(model: str, options: ImageOptions) -> ImageOutput:
    """Load the filter, and hash the weights meanwhile. Raise `InvalidParams` for an unknown filter."""
    image_filter = open_image_filter(options.image_filter, options.image_rules)
    folder = open_model(model)
    model_hash = in_background(partial(_hash, folder.path)) if options.file_metadata else None
    return ImageOutput(
        image_filter,
        folder.name,
        model_hash,
        options.file_metadata,
        folder.path,
        options.filter_frames_every,
        open_sound_judge(options.image_filter),
        options.allow_unjudged_audio,
    )


def in_background(work: Callable[[], T]) -> "Future[T]":
    """Run `work` on a daemon thread, which holds up no exit, and return its future result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="diffuserve-background", daemon=True).start()
    return future


@cache
def _hash_of(folder: Path) -> str:
    return hash_weights(folder)


def _hash(folder: Path) -> str | None:
    try:
        return hash_weights(folder)
    except OSError:  # the model itself is loaded, and images need no hash
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


def provenance(
    params: Mapping[str, Any],
    image: int | None,
    model: str,
    model_hash: str | None = None,
    quantization: str | None = None,
) -> dict[str, Any]:
    """Return the parameters that generate this image alone, with model and version.

    `image` is its index in the request; the request's first image has `params["seed"]`, each further image
    the next seed. Layers are not drawn alone: without `image` the parameters are those of all. `model_hash`
    is the sha256 of the weights' files, in hex; `quantization` says what the weights were kept in, where that
    was not their own numbers.
    """
    alone = {} if image is None else {"seed": params["seed"] + image, "num_images": 1}
    own = {**alone, "model": model}
    weights = {"model_hash": model_hash} if model_hash is not None else {}
    numbers = {"quantization": quantization} if quantization is not None else {}
    return {**params, **own, **weights, **numbers, "version": __version__}

"""The files of a request's sounds, and what becomes of the sounds of clips."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import av

from diffuserve.domain.errors import OutputBlocked
from diffuserve.domain.safety import Action, Verdict
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.image_output import ImageOutput, writing
from diffuserve.media.sound_file import DEFAULT_SOUND_FORMAT, SOUND_FORMATS
from diffuserve.media.sound_writer import save_sound
from diffuserve.media.waveform import waveform
from diffuserve.models.frames import Sound
from diffuserve.protocol.messages import FinishedFile
from diffuserve.safety.sound_judges import WITHHELD
from diffuserve.storage.base import content_type_of

_sounds_are_written = partial(writing, errors=(OSError, av.FFmpegError))


def check_sounds_leave(request_id: str, images: ImageOutput) -> None:
    """Raise `OutputBlocked` if no sound may leave."""
    if not images.lets_sounds_out:
        raise OutputBlocked(request_id, WITHHELD)


def check_passed(request_id: str, verdict: Verdict) -> None:
    """Raise `OutputBlocked` unless the judge passed a sound."""
    if verdict.action in (Action.BLUR, Action.BLOCK):
        reason = f"a sound is blocked by the judge of sounds (category {verdict.category!r})"
        raise OutputBlocked(request_id, reason, verdict.category)


def write_sounds(
    images: ImageOutput, result: GenerationResult, folder: Path, asked: str
) -> tuple[FinishedFile, ...]:
    """Write the sounds of a result, which have passed, and a picture of the first.

    Raise `OutputNotWritten`. A format that is none of sounds stands for the default one.
    """
    suffix = SOUND_FORMATS[asked if asked in SOUND_FORMATS else DEFAULT_SOUND_FORMAT].suffix
    with _sounds_are_written(result.request_id):
        files = []
        for index, sound in enumerate(result.sounds):
            path = folder / f"{index}{suffix}"
            save_sound(sound, path, images.origin(result.params, index))
            files.append(_file(path, sound, index, result.seed + index))
        picture = waveform(result.sounds[0])
        return (*files, images.thumbnail(picture, folder, images.origin(result.params, 0)))


def _file(path: Path, sound: Sound, index: int, seed: int) -> FinishedFile:
    return FinishedFile(
        path=str(path),
        name=path.name,
        content_type=content_type_of(path.name),
        index=index,
        role="audio",
        seed=seed,
        seconds=sound.seconds,
        channels=sound.num_channels,
        sample_rate=sound.sample_rate,
    )


def screened_sounds(images: ImageOutput, result: GenerationResult) -> Sequence[Verdict]:
    """Return the verdicts on the sounds of a result, for commands that run an engine themselves.

    Raise `OutputBlocked` unless all of them may leave.
    """
    check_sounds_leave(result.request_id, images)
    verdicts = [images.judge_sound(sound).verdict for sound in result.sounds]
    for verdict in verdicts:
        check_passed(result.request_id, verdict)
    return verdicts

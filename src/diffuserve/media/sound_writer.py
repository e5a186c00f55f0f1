"""Files of sounds, with the parameters they were generated with, and the sound of clips."""

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import OutputContainer
from numpy.typing import NDArray

from diffuserve.media.sound_file import SOUND_FORMATS, SOUND_TRACKS
from diffuserve.models.frames import Sound

PARAMETERS = "comment"  # the metadata that all these containers have, and that most programs show
_LAYOUTS = {1: "mono", 2: "stereo"}
_BLOCK_SECONDS = 1.0  # of a sound, encoded at once


class SoundStream:
    """The stream of a sound in a container, encoded from its beginning, as far as it is asked for."""

    def __init__(
        self, container: OutputContainer, sound: Sound, codec: str, rate: int, bit_rate: int = 0
    ) -> None:
        self._container, self._sound = container, sound
        layout = _LAYOUTS[sound.num_channels]
        stream = container.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, AudioStream)
        if bit_rate:
            stream.bit_rate = bit_rate
        self._stream = stream
        self._resampler = AudioResampler(stream.format, layout, rate, stream.frame_size or None)
        self._position = 0

    def encode_until(self, seconds: float) -> None:
        """Encode what comes before a moment, if it is not encoded yet."""
        stop = min(round(seconds * self._sound.sample_rate), self._sound.num_samples)
        if stop > self._position:
            self._encode(_frame(self._sound, self._position, stop))
            self._position = stop

    def finish(self) -> None:
        """Encode what the encoder still holds; the rest of the sound is left out."""
        self._encode(None)
        self._container.mux(self._stream.encode(None))

    def _encode(self, frame: AudioFrame | None) -> None:
        for resampled in self._resampler.resample(frame):
            self._container.mux(self._stream.encode(resampled))


def sound_track(container: OutputContainer, container_format: str, sound: Sound) -> SoundStream:
    """Return the stream of a clip's sound in a container of `SOUND_TRACKS`, at a rate that it has."""
    track = SOUND_TRACKS[container_format]
    rate = sound.sample_rate if sound.sample_rate in track.rates else max(track.rates)
    return SoundStream(container, sound, track.codec, rate, track.bit_rate)


def save_sound(sound: Sound, path: Path, parameters: Mapping[str, Any]) -> None:
    """Write a sound atomically in the format of the path's suffix, one of `SOUND_FORMATS`.

    Without `parameters` the file carries nothing but the sound.
    """
    partial = path.with_name(f".{path.name}.partial")
    name = path.suffix.lower().removeprefix(".")
    try:
        with av.open(str(partial), "w", format=name, options={"fflags": "+bitexact"}) as container:
            if parameters:
                container.metadata[PARAMETERS] = json.dumps(parameters, ensure_ascii=False)
            stream = SoundStream(container, sound, SOUND_FORMATS[name].codec, sound.sample_rate)
            seconds = 0.0
            while seconds < sound.seconds:
                seconds += _BLOCK_SECONDS
                stream.encode_until(seconds)
            stream.finish()
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)  # the rest of a failed write


def read_sound(path: Path) -> Sound:
    """Return the sound in a file of a sound or of a clip. Raise `av.error.FFmpegError` if it has none."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        resampler = AudioResampler("fltp", stream.layout, stream.rate)
        frames = [each for frame in container.decode(stream) for each in resampler.resample(frame)]
        frames += resampler.resample(None)
        samples = np.concatenate([frame.to_ndarray() for frame in frames], axis=1)
        return Sound(samples.astype(np.float32, copy=False), stream.rate)


def _frame(sound: Sound, start: int, stop: int) -> AudioFrame:
    """Return samples of a sound, clipped to 16 bits, as the frame that starts there."""
    frame = AudioFrame.from_ndarray(_pcm(sound.samples[:, start:stop]), "s16p", _LAYOUTS[sound.num_channels])
    frame.sample_rate = sound.sample_rate
    frame.pts, frame.time_base = start, Fraction(1, sound.sample_rate)
    return frame


def _pcm(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    levels = np.rint(np.clip(samples, -1.0, 1.0) * 32_767).astype(np.int16)
    return np.ascontiguousarray(levels)

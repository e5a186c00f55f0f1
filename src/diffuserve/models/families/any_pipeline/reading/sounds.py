"""The abilities of pipelines that make sounds, or clips with sound, by the configs of their components."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.models.families.any_pipeline.reading.signature import Signature
from diffuserve.models.families.any_pipeline.reading.tasks import DURATIONS, Task, makes_sound, task_of
from diffuserve.models.folders.folder import SETTINGS_FILE, ModelFolder

_Rate = Annotated[int, Field(ge=8_000, le=192_000)]
_Factors = Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(max_length=12)]
_MAKERS = ("vocoder", "audio_vae", "vae")
"""Components that make the samples, the last of a pipeline first."""
_SECONDS, _LONGEST, _MOST_TIMES = 10.0, 600.0, 4
_SAMPLES_PER_TOKEN = 2048
# A sound has no sides, and no other size than its length.
_NO_SIZE: Final = {"width": 1, "height": 1, "size_multiple": 1, "min_size": 1, "max_size": 1, "max_pixels": 1}


@with_config(SCHEMA)
@dataclass(frozen=True)
class SoundSizes:
    """What a component's config says of the sound that it makes."""

    output_sampling_rate: _Rate | None = None
    sampling_rate: _Rate | None = None
    sample_rate: _Rate | None = None
    downsampling_ratios: _Factors = ()

    @property
    def rate(self) -> int | None:
        """Samples a second; `None` if it says nothing."""
        return self.output_sampling_rate or self.sampling_rate or self.sample_rate


def sounds(folder: ModelFolder, signature: Signature, latent_length: int | None) -> dict[str, Any]:
    """Return the fields of a spec that are about sound; none for a class that makes none.

    `latent_length` is that of what the model was trained on, if a config says it. Raise `InvalidModel` for a
    model of sounds whose rate is nowhere: its sounds would have another pitch.
    """
    if not makes_sound(signature):
        return {}
    maker = _maker(folder)
    if task_of(signature) is not Task.SOUND:
        return {"sample_rate": maker.rate or 0}
    if maker.rate is None and "sample_rate" not in folder.settings:
        raise InvalidModel(
            f"{folder.path}: no config of {', '.join(_MAKERS)} says its sampling_rate; give sample_rate in "
            f"{SETTINGS_FILE}"
        )
    hop = math.prod(maker.downsampling_ratios) or _SAMPLES_PER_TOKEN
    return {
        **_NO_SIZE,
        "sample_rate": maker.rate or 0,
        "pixels_per_token": hop,
        "has_lyrics": "lyrics" in signature.arguments,
        **_length(signature, latent_length, hop / (maker.rate or 1)),
    }


def _length(signature: Signature, latent_length: int | None, hop_seconds: float) -> dict[str, float]:
    """Return the default length in seconds, and the most: that of what the model was trained on, if known."""
    given = signature.default(*DURATIONS)
    if isinstance(given, int | float):
        return {"seconds": float(given), "max_seconds": min(_MOST_TIMES * given, _LONGEST)}
    trained = _SECONDS if latent_length is None else latent_length * hop_seconds
    return {"seconds": trained, "max_seconds": trained if latent_length else _MOST_TIMES * trained}


def _maker(folder: ModelFolder) -> SoundSizes:
    """Return the sizes of the first component that says its rate; else those of the last."""
    read = SoundSizes()
    for name in _MAKERS:
        if (folder.path / name / "config.json").is_file():
            read = parse_config(SoundSizes, *folder.config(name))
            if read.rate is not None:
                return read
    return read

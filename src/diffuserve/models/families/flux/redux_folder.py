"""FLUX.1 Redux by its configs, which are checked against a model's. Importing this loads no torch."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.vision.vision_config import SiglipProcessorConfig, SiglipVisionConfig

ENCODER, EMBEDDER = "image_encoder", "image_embedder"


@with_config(SCHEMA)
@dataclass(frozen=True)
class ReduxConfig:
    """The values of `image_embedder/config.json`, with diffusers' names and defaults."""

    redux_dim: Width = 1152
    txt_in_features: Width = 4096


@dataclass(frozen=True)
class Redux:
    """A folder of FLUX.1 Redux whose configs fit a model's."""

    folder: ModelFolder
    config: ReduxConfig
    encoder: SiglipVisionConfig
    processor: SiglipProcessorConfig

    @property
    def weight_files(self) -> list[Path]:
        """Return all files whose weights are loaded. Raise `InvalidModel` if one is missing or broken."""
        return [*self.folder.weights(ENCODER), *self.folder.weights(EMBEDDER)]


def open_redux(path: Path, flux: FluxConfig) -> Redux:
    """Return FLUX.1 Redux in diffusers' format. Raise `InvalidModel` for a folder of something else."""
    folder = ModelFolder(path)
    if not (path / EMBEDDER).is_dir():
        raise InvalidModel(
            f"{path}: holds no {EMBEDDER}/; FLUX.1 reads image prompts with a folder of FLUX.1 Redux, in "
            "diffusers' format"
        )
    redux = Redux(
        folder,
        parse_config(ReduxConfig, *folder.config(EMBEDDER)),
        SiglipVisionConfig.read(folder, ENCODER),
        SiglipProcessorConfig.read(folder),
    )
    _check(redux, flux)
    return redux


def _check(redux: Redux, flux: FluxConfig) -> None:
    side, size = redux.encoder.image_size, redux.processor.size
    pairs = {
        "txt_in_features": (redux.config.txt_in_features, flux.joint_attention_dim, "joint_attention_dim"),
        "redux_dim": (redux.config.redux_dim, redux.encoder.hidden_size, "its encoder's hidden_size"),
        "the preprocessor's height": (size.height, side, "its encoder's image_size"),
        "the preprocessor's width": (size.width, side, "its encoder's image_size"),
    }
    for name, (value, expected, whose) in pairs.items():
        if value != expected:
            raise InvalidModel(f"{redux.folder.path}: {name}={value} must be {whose}={expected}")

"""The description of a model that a worker offers: read from its configs, before its weights are fetched."""

from collections.abc import Collection
from dataclasses import replace
from importlib.util import find_spec
from pathlib import PurePosixPath

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.extras import Extra
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.engine_process.model.stored_model import with_patience
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.registry import (
    find_quantization,
    num_companion_bytes,
    num_weight_bytes,
    read_offer,
    weight_folders,
)
from diffuserve.modelstore.configs import DescribedModel
from diffuserve.modelstore.store import describe_stored
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import ModelAnnounced

_WEIGHTS = ".safetensors"


def describe(config: EngineProcessConfig) -> ModelAnnounced:
    """Read what a model is; a store that does not respond is waited for.

    Raise `ModelNotFound` or `InvalidModel` for one that cannot be loaded, or whose output cannot be written.
    """
    return with_patience(lambda: _described(config))


def _described(config: EngineProcessConfig) -> ModelAnnounced:
    with describe_stored(config.model, config.stored) as stored:
        if stored is not None:
            num_bytes = _weight_bytes(stored, config.parts)
            return _announced(str(stored.folder), stored.manifest.reference, num_bytes, config)
    is_here = find_local_model(config.model) is not None
    if not is_here:
        return _announced(config.model, config.model, 0, config)
    announced = _announced(config.model, config.model, num_weight_bytes(config.model, config.parts), config)
    return replace(announced, quantization=find_quantization(config.model, config.quantization))


def check_encoder(model: str, spec: ModelSpec) -> None:
    """Raise `InvalidModel` for what av writes if that is not installed: images need none."""
    made = "sounds" if spec.is_audio else "clips" if spec.is_video else None
    if made is not None and find_spec("av") is None:
        remedy = f"makes {made}, which av writes, and that is not installed; {Extra.ENGINE.remedy}"
        raise InvalidModel(f"{model} {remedy}")


def _announced(folder: str, reference: str, num_bytes: int, config: EngineProcessConfig) -> ModelAnnounced:
    companions = companions_of(config.controlnets, config.image_prompter)
    spec, fit = read_offer(folder, companions)
    if config.parts.decoding:
        check_encoder(reference, spec)
    num_bytes += num_companion_bytes(folder, companions)
    return ModelAnnounced(spec=spec, fit=fit, reference=reference, num_bytes=num_bytes)


def _weight_bytes(stored: DescribedModel, parts: Parts) -> int:
    """Return the size of the weights that are loaded for `parts`, by the manifest."""
    folders: Collection[str] = weight_folders(str(stored.folder), parts)
    paths = [(PurePosixPath(file.path), file.size) for file in stored.manifest.files]
    return sum(size for path, size in paths if path.parent.name in folders and path.suffix == _WEIGHTS)

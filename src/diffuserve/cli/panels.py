"""Panels of a command's help, in their order, with the options in each."""

from collections.abc import Mapping
from typing import Final

from diffuserve.engine.config import EngineConfig
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.options import option_fields
from diffuserve.telemetry.log_config import LogConfig
from diffuserve.telemetry.tracing_config import TracingConfig

SERVER: Final = "Server"
MODEL: Final = "Model"
MODEL_STORE: Final = "Model store"
INPUT_IMAGES: Final = "Images to start from or to edit"
CLIPS: Final = "Clips"
LISTENING: Final = "Listening"
STORAGE: Final = "Storage"
SAFETY: Final = "Safety"
ENGINE: Final = "Engine"
MANY_GPUS: Final = "Many GPUs"
RELIABILITY: Final = "Reliability"
FLEET: Final = "Fleet"
LOG: Final = "Log and traces"

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    SERVER: ("server", "api_key", "api_key_file"),
    MODEL: ("model", "device", "dtype", "quantization", "offload", "compiled", "tiers"),
    MODEL_STORE: (*option_fields(ModelStoreConfig), "prepare_models", "peers", "peer_upload_bytes"),
    LISTENING: ("host", "port"),
    STORAGE: ("data_dir", "database_url", "valkey_url", "file_metadata"),
    SAFETY: ("prompt_filter", "image_filter", "image_rules", "filter_frames_every"),
    ENGINE: ("role", "max_jobs", *option_fields(EngineConfig), "memory_fraction", "resident_bytes"),
    MANY_GPUS: ("gpus", "parallel", "collective_seconds"),
    RELIABILITY: (
        "drain_seconds",
        "spot",
        "notice_seconds",
        "checkpoint_seconds",
        "stall_seconds",
        "silence_seconds",
        "engine_restarts",
        "zygote",
    ),
    LOG: (*option_fields(LogConfig), *option_fields(TracingConfig)),
}
PANELS: Mapping[str, str] = {name: panel for panel, names in _OPTIONS.items() for name in names}
"""The panel of each setting that is an option of a command."""
_PLACES = {name: place for place, name in enumerate(PANELS)}


def place_of(name: str) -> int:
    """Return the place of an option in the help; those without a panel come last."""
    return _PLACES.get(name, len(_PLACES))

"""Panels of a command's help, in their order, with the options in each.

Settings that are no command's option have panels too: the reference of settings has the same headings.
"""

from collections.abc import Mapping
from typing import Final

from diffuserve.api.server.connection_limits import ConnectionLimits
from diffuserve.engine.config import EngineConfig
from diffuserve.jobs.policy.scaling import ScaleConfig
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
REQUESTS: Final = "Requests"
QUEUE: Final = "Queue"
SCALING: Final = "Scaling"
WEBHOOKS: Final = "Webhooks"
CONNECTIONS: Final = "Connections"
EXPANSION: Final = "Expansion of prompts"

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    SERVER: ("server", "api_key", "api_key_file"),
    MODEL: (
        "model",
        "more_models",
        "default_model",
        "model_aliases",
        "device",
        "dtype",
        "quantization",
        "offload",
        "adapter_files",
        "controlnets",
        "image_prompter",
        "compiled",
        "tiers",
    ),
    MODEL_STORE: (*option_fields(ModelStoreConfig), "prepare_models", "peers", "peer_upload_bytes"),
    LISTENING: (
        "host",
        "port",
        "allowed_hosts",
        "allowed_origins",
        "doors",
        "public_api_url",
        "public_metrics",
        "api_docs",
        "session_seconds",
    ),
    STORAGE: (
        "data_dir",
        "data_access",
        "database_url",
        "valkey_url",
        "artifacts_url",
        "public_base_url",
        "result_url_seconds",
        "retention_seconds",
        "file_metadata",
    ),
    SAFETY: (
        "prompt_filter",
        "prompt_policy",
        "prompt_filter_processes",
        "prompt_filter_key",
        "prompt_filter_timeout_seconds",
        "prompt_filter_down",
        "image_filter",
        "image_rules",
        "image_intake_processes",
        "filter_frames_every",
        "allow_unjudged_audio",
        "audit_seconds",
    ),
    ENGINE: (
        "role",
        "max_jobs",
        "tuned",
        *option_fields(EngineConfig),
        "memory_fraction",
        "resident_bytes",
        "model_orders",
        "cache_dir",
    ),
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
    REQUESTS: (
        "openai_sizes",
        "max_body_bytes",
        "upload_seconds",
        "min_upload_bytes_per_second",
        "max_input_file_bytes",
        "input_file_retention_seconds",
        "input_url_allowed_networks",
        "input_url_allowed_ports",
        "adapter_uploads",
        "max_adapter_bytes",
    ),
    QUEUE: (
        "lease_seconds",
        "heartbeat_seconds",
        "on_demand_wait_seconds",
        "spot_wait_seconds",
        "preempt_after_seconds",
        "max_preemptions",
        "max_backlog_seconds",
        "plans",
        "default_plan",
    ),
    SCALING: tuple(option_fields(ScaleConfig)),
    WEBHOOKS: ("webhook_allowed_networks", "webhook_allowed_ports", "webhook_timeout_seconds"),
    CONNECTIONS: tuple(option_fields(ConnectionLimits)),
    EXPANSION: (
        "expander_url",
        "expander_model",
        "expander_key",
        "expander_timeout_seconds",
        "expander_system_prompt",
    ),
}
PANELS: Mapping[str, str] = {name: panel for panel, names in _OPTIONS.items() for name in names}
"""The panel of each setting."""
_PLACES = {name: place for place, name in enumerate(PANELS)}


def place_of(name: str) -> int:
    """Return the place of an option in the help; those without a panel come last."""
    return _PLACES.get(name, len(_PLACES))

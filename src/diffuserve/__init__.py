"""Diffuserve: serve diffusion models with step-level continuous batching.

Public names are imported on first use, so that `import diffuserve` pulls in no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from diffuserve.version import __version__

if TYPE_CHECKING:
    from diffuserve.domain.errors import DiffuserveError, InvalidParams, PromptBlocked, RateLimited
    from diffuserve.domain.models.spec import ModelSpec
    from diffuserve.domain.requests.adapter_use import AdapterUse
    from diffuserve.domain.requests.control_use import ControlUse
    from diffuserve.domain.requests.params import GenerationParams
    from diffuserve.engine.config import EngineConfig
    from diffuserve.engine.engine import Engine
    from diffuserve.engine.outputs import GenerationResult, StepOutput
    from diffuserve.sdk.async_client import AsyncClient, JobFilters
    from diffuserve.sdk.client import Client
    from diffuserve.sdk.generated_file import GeneratedFile

__all__ = [
    "AdapterUse",
    "AsyncClient",
    "Client",
    "ControlUse",
    "DiffuserveError",
    "Engine",
    "EngineConfig",
    "GeneratedFile",
    "GenerationParams",
    "GenerationResult",
    "InvalidParams",
    "JobFilters",
    "ModelSpec",
    "PromptBlocked",
    "RateLimited",
    "StepOutput",
    "__version__",
]

_HOMES = {
    "AdapterUse": "diffuserve.domain.requests.adapter_use",
    "AsyncClient": "diffuserve.sdk.async_client",
    "Client": "diffuserve.sdk.client",
    "ControlUse": "diffuserve.domain.requests.control_use",
    "DiffuserveError": "diffuserve.domain.errors",
    "Engine": "diffuserve.engine.engine",
    "EngineConfig": "diffuserve.engine.config",
    "GeneratedFile": "diffuserve.sdk.generated_file",
    "GenerationParams": "diffuserve.domain.requests.params",
    "GenerationResult": "diffuserve.engine.outputs",
    "InvalidParams": "diffuserve.domain.errors",
    "JobFilters": "diffuserve.sdk.async_client",
    "ModelSpec": "diffuserve.domain.models.spec",
    "PromptBlocked": "diffuserve.domain.errors",
    "RateLimited": "diffuserve.domain.errors",
    "StepOutput": "diffuserve.engine.outputs",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffuserve' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__name__):
            raise
        from diffuserve.domain.extras import Extra

        message = f"{name} needs {error.name}: {Extra.ENGINE.remedy}"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return __all__

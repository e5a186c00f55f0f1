"""Every error that callers may want to handle.

DiffuserveError
├── InvalidParams            also a ValueError; names the field, the value and the remedy
│   └── ModelNotCapable      the model cannot honour a parameter that others can
├── ModelNotFound            no such bundled model, folder or hub id
├── InvalidModel             a model folder that is incomplete, truncated or of another kind
├── DeviceUnavailable        the device asked for is not on this machine
├── EngineClosed             the engine was closed before the request finished
└── RequestFailed            one request failed; its neighbours did not
    ├── RequestAborted
    ├── NumericalFailure     NaN or infinity in the latents
    └── OutOfMemory          too large even when run alone
"""

from typing import ClassVar


class DiffuserveError(Exception):
    """The root of this project's errors; `code` is stable and meant for machines."""

    code: ClassVar[str] = "error"


class InvalidParams(DiffuserveError, ValueError):
    """A parameter is wrong; nothing was started."""

    code = "invalid_params"

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={_shorten(value)}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class ModelNotCapable(InvalidParams):
    """The model cannot honour this parameter; it is refused rather than dropped."""

    code = "model_not_capable"


class ModelNotFound(DiffuserveError, ValueError):
    code = "model_not_found"


class InvalidModel(DiffuserveError, ValueError):
    code = "invalid_model"


class DeviceUnavailable(DiffuserveError, ValueError):
    code = "device_unavailable"


class EngineClosed(DiffuserveError):
    code = "engine_closed"


class RequestFailed(DiffuserveError):
    """One request failed while it ran."""

    code = "request_failed"

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(f"request {request_id}: {reason}")
        self.request_id = request_id


class RequestAborted(RequestFailed):
    code = "aborted"


class NumericalFailure(RequestFailed):
    code = "numerical_failure"


class OutOfMemory(RequestFailed):
    code = "out_of_memory"


def _shorten(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

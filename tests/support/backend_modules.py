"""Modules that are there inside Triton and TorchServe alone, as far as our models there use them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest


class PredictionException(Exception):
    """TorchServe's own error, with the HTTP status of the answer."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message, self.error_code = message, error_code


@dataclass
class Tensor:
    """A named array of a request or a response."""

    _name: str
    _array: Any

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class TritonError(Exception):
    """Triton's own error, with its code."""

    INVALID_ARG, UNAVAILABLE, INTERNAL, CANCELLED = "INVALID_ARG", "UNAVAILABLE", "INTERNAL", "CANCELLED"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class InferenceResponse:
    """Tensors, or an error."""

    output_tensors: Sequence[Tensor] = ()
    error: TritonError | None = None


@dataclass
class InferenceRequest:
    """A request, and the sender of its response at once; its inputs are gone after `execute`."""

    tensors: list[Tensor]
    wanted: Sequence[str] = ("images", "files", "seeds", "warnings")
    is_canceled: bool = False
    responses: list[InferenceResponse] = field(default_factory=list)

    @classmethod
    def of(cls, **values: Any) -> "InferenceRequest":
        """Return a request of one value an input, as Triton hands them over."""
        return cls([Tensor(name, _array(value)) for name, value in values.items()])

    def inputs(self) -> list[Tensor]:
        return self.tensors

    def requested_output_names(self) -> Sequence[str]:
        return self.wanted

    def get_response_sender(self) -> "InferenceRequest":
        return self

    def is_cancelled(self) -> bool:
        return self.is_canceled

    def send(self, response: InferenceResponse, flags: int) -> None:
        assert flags == 1, "the only response is the final one"
        self.responses.append(response)


class MetricFamily:
    """A counter, which is its own only metric."""

    COUNTER = "counter"

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.value = name, 0.0

    def Metric(self, labels: dict[str, str]) -> "MetricFamily":
        return self

    def increment(self, value: float) -> None:
        self.value += value


def _array(value: Any) -> Any:
    texts = [value.encode() if isinstance(value, str) else value]
    return np.array(texts, np.object_) if isinstance(value, str | bytes) else np.array([value])


def provide(patch: pytest.MonkeyPatch) -> None:
    """Make the modules importable."""
    ts, service, backend = (ModuleType(name) for name in ("ts", "ts.service", "triton_python_backend_utils"))
    vars(service)["PredictionException"] = PredictionException
    for made in (Tensor, TritonError, InferenceResponse, MetricFamily):
        vars(backend)[made.__name__] = made
    vars(backend)["TRITONSERVER_RESPONSE_COMPLETE_FINAL"] = 1
    for module in (ts, service, backend):
        patch.setitem(sys.modules, module.__name__, module)

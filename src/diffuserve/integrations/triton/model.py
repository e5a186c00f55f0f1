"""The model that Triton's Python backend runs: requests enter one engine, whose steps they share.

`execute` hands requests to the engine and returns at once; each response is sent when its images are done.
So requests meet in the engine's steps that Triton would serve one after another, and plain HTTP requests
too: the model is not decoupled, and Triton forms no batches.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils  # it is there inside Triton alone

from diffuserve.domain.errors import DiffuserveError, InvalidParams
from diffuserve.domain.requests.request_fields import FieldKind
from diffuserve.engine.stats import EngineStats
from diffuserve.integrations.engine import InProcessEngine, settings_of
from diffuserve.integrations.outputs import check_draws_images, drawn
from diffuserve.integrations.triton.repository import INPUTS, OUTPUTS, SEVERAL

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.5
"""How often a request is looked at for whether its client has gone."""
_BY_STATUS: Final = {413: "INVALID_ARG", 422: "INVALID_ARG", 503: "UNAVAILABLE"}
"""Names of Triton's error codes by the status that an error has over HTTP; others are internal."""


class TritonPythonModel:
    """diffuserve's engine in the form that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model that the parameters of `config.pbtxt` name. What it raises, Triton shows."""
        config = json.loads(args["model_config"])
        texts = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        self._host = InProcessEngine.open(settings_of(texts, device=_device(args)))
        check_draws_images(self._host.engine.spec)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="diffuserve-triton")
        self._thread.start()
        self._counters = StepCounters(args["model_name"])

    def execute(self, requests: Sequence[Any]) -> None:
        """Begin requests. Their inputs are read here: Triton frees them when this returns."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                values, outputs = dict(values_of(request)), request.requested_output_names()
            except Exception as error:  # the other requests go on
                _send(sender, error)
                continue
            asyncio.run_coroutine_threadsafe(self._answer(values, outputs, sender), self._loop)

    def finalize(self) -> None:
        """End; unfinished requests are answered with an error."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self._host.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, values: Mapping[str, Any], outputs: Sequence[str], sender: Any) -> None:
        """Draw, and send the response or the error. Nothing is raised: a server goes on with others."""
        try:
            drawing = asyncio.create_task(self._tensors(values, outputs))
            while not (await asyncio.wait([drawing], timeout=_LOOK_SECONDS))[0]:
                if sender.is_cancelled():
                    drawing.cancel()
            _send(sender, drawing.result())
        except (Exception, asyncio.CancelledError) as error:
            _send(sender, error)
        self._counters.count(self._host.engine.stats)

    async def _tensors(self, values: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        """Draw, and return the tensors that are asked for, in their order."""
        images = await drawn(self._host, values)
        made: Mapping[str, Callable[[], Any]] = {
            "images": lambda: np.stack([np.asarray(image) for image in images.result.images]),
            "files": lambda: _texts(images.files()),
            "seeds": lambda: np.array(images.seeds, np.int64),
            "warnings": lambda: _texts([warning.encode() for warning in images.result.warnings]),
        }
        wanted = [name for name in OUTPUTS if name in outputs]
        return await asyncio.to_thread(lambda: [pb_utils.Tensor(name, made[name]()) for name in wanted])


class StepCounters:
    """Steps of the engine as counters of Triton's own metrics; their ratio is the requests in a step."""

    def __init__(self, model: str) -> None:
        self._told = (0, 0)
        self._families = [  # Triton forgets a metric whose family is gone
            _family("diffuserve_engine_steps_total", "Denoising steps of the engine."),
            _family("diffuserve_request_steps_total", "Requests in its steps, each time they step."),
        ]
        self._counters = [family.Metric(labels={"model": model}) for family in self._families]

    def count(self, stats: EngineStats) -> None:
        """Add what the engine has done since the last call."""
        now = (stats.num_steps, stats.num_request_steps)
        for counter, total, told in zip(self._counters, now, self._told, strict=True):
            counter.increment(total - told)
        self._told = now


def _family(name: str, description: str) -> Any:
    return pb_utils.MetricFamily(name=name, description=description, kind=pb_utils.MetricFamily.COUNTER)


def _device(args: Mapping[str, str]) -> str:
    """Return the device that Triton gives to this instance."""
    is_gpu = args["model_instance_kind"] == "GPU"
    return f"cuda:{args['model_instance_device_id']}" if is_gpu else "cpu"


def values_of(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of the inputs that a request has. Raise `InvalidParams`."""
    for tensor in request.inputs():
        name, array = tensor.name(), tensor.as_numpy().reshape(-1)
        several = name in INPUTS and INPUTS[name].kind in SEVERAL
        if not several and array.size != 1:
            raise InvalidParams(name, list(array.shape), "must be a tensor of one value")
        parts = [_value(name, value) for value in array]
        yield name, parts if several else parts[0]


def _value(name: str, value: Any) -> Any:
    """Return a value of a tensor as Python's own; images stay bytes."""
    if not isinstance(value, bytes):
        return value.item() if isinstance(value, np.generic) else value
    if name in INPUTS and INPUTS[name].kind in (FieldKind.IMAGE, FieldKind.IMAGES):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidParams(name, value, "must be UTF-8") from error


def _texts(values: Sequence[bytes]) -> Any:
    return np.array(values, np.object_)


def _send(sender: Any, outcome: Any) -> None:
    """Send the response of tensors, or of an error, as the only one of its request."""
    if isinstance(outcome, BaseException):
        response = pb_utils.InferenceResponse(error=_error(outcome))
    else:
        response = pb_utils.InferenceResponse(output_tensors=outcome)
    try:
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except Exception:  # the client has gone
        log.exception("a response could not be sent")


def _error(error: BaseException) -> Any:
    """Return an error in Triton's form, with its remedy."""
    if isinstance(error, asyncio.CancelledError):
        return pb_utils.TritonError("the client canceled the request", pb_utils.TritonError.CANCELLED)
    if not isinstance(error, DiffuserveError):
        log.error("a request failed", exc_info=error)
    code = _BY_STATUS.get(getattr(error, "status", None) or 0, "INTERNAL")
    return pb_utils.TritonError(str(error) or type(error).__name__, getattr(pb_utils.TritonError, code))

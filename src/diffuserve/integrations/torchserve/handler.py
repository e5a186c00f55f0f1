"""The handler that TorchServe's worker runs: requests come one by one, and share the engine's steps."""

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ts.service import PredictionException  # it is there inside TorchServe alone

from diffuserve.domain.errors import DiffuserveError, InvalidParams
from diffuserve.integrations.engine import InProcessEngine, settings_of
from diffuserve.integrations.outputs import DrawnImages, check_draws_images, drawn

log = logging.getLogger(__name__)

_BAD_REQUEST: Final = 400
_BY_STATUS: Final = {422: _BAD_REQUEST, 413: 413, 503: 503}
"""HTTP status of an error by its status in our own API; others are 500."""
_EXAMPLE: Final = '{"prompt": "a red circle"}'


class DiffuserveHandler:
    """diffuserve's engine in the form that TorchServe calls.

    `handler` in model-config.yaml has its settings.
    """

    def __init__(self) -> None:
        self.initialized = False

    def initialize(self, context: Any) -> None:
        """Load the model. What it raises, TorchServe logs."""
        options = (context.model_yaml_config or {}).get("handler") or {}
        gpu = context.system_properties.get("gpu_id")
        device = "cpu" if gpu is None else f"cuda:{gpu}"
        self._host = InProcessEngine.open(settings_of(options, device=device))
        check_draws_images(self._host.engine.spec)
        self.initialized = True

    async def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[dict[str, Any]]:
        """Answer the one request of `data`. Raise TorchServe's own error, with our words in it."""
        try:
            images = await drawn(self._host, _values(data[0]))
            return [await asyncio.to_thread(self._answer, images)]
        except DiffuserveError as error:
            raise PredictionException(str(error), _BY_STATUS.get(error.status or 0, 500)) from error
        except Exception as error:
            log.exception("a request failed")
            raise PredictionException(str(error) or type(error).__name__, 500) from error

    def _answer(self, images: DrawnImages) -> dict[str, Any]:
        return {
            "images": [b64encode(file).decode() for file in images.files()],
            "output_format": images.file_format,
            "seeds": images.seeds,
            "warnings": list(images.result.warnings),
            "requests_per_step": round(self._host.engine.stats.mean_requests_per_step, 2),
        }


def _values(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON object that a request brings. Raise `InvalidParams`."""
    body = row.get("body", row.get("data"))
    if isinstance(body, bytes | bytearray):
        try:
            body = json.loads(body)
        except ValueError as error:
            raise InvalidParams("body", bytes(body), f"must be JSON such as {_EXAMPLE} ({error})") from error
    if not isinstance(body, Mapping):
        raise InvalidParams("body", body, f"must be a JSON object such as {_EXAMPLE}")
    return body

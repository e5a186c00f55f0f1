"""Scores from a server of OpenAI's moderation API: OpenAI's, another one, or `diffuserve moderate`."""

from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import FilterInfo
from diffuserve.remote.json_api import JsonApi, JsonApiConfig, RemoteCallFailed
from diffuserve.safety.moderation_api.categories import by_category

DEFAULT_MODEL = "omni-moderation-latest"
_PATH = "/moderations"
_RETRY_AFTER_SECONDS = 1.0
_ROUNDING = 1e-3  # a softmax in half precision may exceed 1 by a little


class ModerationClassifier:
    """Sends a request for each prompt."""

    def __init__(
        self,
        url: str,
        *,
        model: str = DEFAULT_MODEL,
        key: str | None = None,
        timeout_seconds: float = 5.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` is the API's base, with or without `/v1`; `timeout_seconds` bounds a whole call.

        Raise `InvalidParams` for values with which no call can succeed.
        """
        config = JsonApiConfig(
            url_setting="prompt_filter", url=url, path=_PATH, key=key, timeout_seconds=timeout_seconds
        )
        self.info = FilterInfo("moderation", model)
        self._api = JsonApi(config, transport)
        self._model = model

    async def scores(self, prompt: str) -> Mapping[str, float]:
        """Return a score in 0…1 for each category. Raise `ModerationUnavailable` after `timeout_seconds`."""
        try:
            return by_category(_parse_scores(await self._api.post({"input": prompt, "model": self._model})))
        except RemoteCallFailed as error:
            raise ModerationUnavailable(
                f"the moderation server {error}", retry_after=_RETRY_AFTER_SECONDS
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()


def _parse_scores(content: bytes) -> dict[str, float]:
    """Return the scores by the server's names. Raise `RemoteCallFailed` if any is missing or invalid."""
    try:
        scores = orjson.loads(content)["results"][0]["category_scores"]
        found = {name: min(max(float(score), 0.0), 1.0) for name, score in scores.items() if _is_score(score)}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RemoteCallFailed("sent a response without scores") from error
    if not found or len(found) < len(scores):
        raise RemoteCallFailed("sent scores outside 0…1, or none")
    return found


def _is_score(score: Any) -> bool:
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return is_number and -_ROUNDING <= score <= 1 + _ROUNDING

"""Scores from a server that speaks OpenAI's moderation API: theirs, another's, or `diffuserve moderate`."""

from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import FilterInfo
from diffuserve.remote.json_api import JsonApi, JsonApiConfig, RequestFailed
from diffuserve.safety.categories import by_category

DEFAULT_MODEL = "omni-moderation-latest"
_PATH = "/moderations"
_RETRY_AFTER = 1.0
_ROUNDING = 1e-3  # a softmax in half precision may give a little more than 1


class ModerationClassifier:
    """One request for each prompt."""

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

        Raises `InvalidParams` for what no call could be made with.
        """
        config = JsonApiConfig(
            url_setting="prompt_filter", url=url, path=_PATH, key=key, timeout_seconds=timeout_seconds
        )
        self.info = FilterInfo("moderation", model)
        self._api = JsonApi(config, transport)
        self._model = model

    async def scores(self, prompt: str) -> Mapping[str, float]:
        """Within `timeout_seconds`, whatever the server does."""
        try:
            return by_category(_read_scores(await self._api.post({"input": prompt, "model": self._model})))
        except RequestFailed as error:
            raise ModerationUnavailable(f"the moderation server {error}", retry_after=_RETRY_AFTER) from error

    async def close(self) -> None:
        await self._api.close()


def _read_scores(content: bytes) -> dict[str, float]:
    """By the server's own names. No scores at all are a failure too: nothing was judged."""
    try:
        scores = orjson.loads(content)["results"][0]["category_scores"]
        found = {name: min(max(float(score), 0.0), 1.0) for name, score in scores.items() if _is_score(score)}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RequestFailed("answered with what are no scores") from error
    if not found or len(found) < len(scores):
        raise RequestFailed("answered with what are no scores in 0…1")
    return found


def _is_score(score: Any) -> bool:
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return is_number and -_ROUNDING <= score <= 1 + _ROUNDING

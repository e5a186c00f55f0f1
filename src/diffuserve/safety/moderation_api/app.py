"""A server of OpenAI's moderation API for a text classifier."""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, Request, Response

from diffuserve.safety.moderation_api.limits import ModerationLimits

log = logging.getLogger(__name__)

_FLAG_THRESHOLD = 0.5


class TextScorer(Protocol):
    """A text classifier. Calls never overlap."""

    name: str

    def scores(self, text: str) -> Mapping[str, float]:
        """Return a score in 0…1 for each label. Raise `ValueError` if the model gives none."""
        ...


def create_moderation_app(
    scorer: TextScorer, limits: ModerationLimits | None = None, harmless: Sequence[str] = ()
) -> FastAPI:
    """Return an app with `POST /v1/moderations` and `GET /healthz`. `harmless` labels flag nothing."""
    service = _ModerationService(scorer, limits or ModerationLimits(), frozenset(harmless))
    app = FastAPI(title="diffuserve moderate", openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "model": scorer.name}

    @app.post("/v1/moderations")
    async def moderations(request: Request) -> Response:
        try:
            return _json_response(200, await service.moderate(request))
        except _RequestError as error:
            kind = "invalid_request_error" if error.status < 500 else "server_error"
            return _json_response(error.status, {"error": {"message": str(error), "type": kind}})

    return app


class _RequestError(Exception):
    """A request that gets an error response with `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _ModerationService:
    """Scores texts one after another, and rejects requests beyond the limits."""

    def __init__(self, scorer: TextScorer, limits: ModerationLimits, harmless: frozenset[str]) -> None:
        self._scorer = scorer
        self._limits = limits
        self._harmless = harmless
        self._thread = ThreadPoolExecutor(
            1, "classifier"
        )  # so that calls never overlap, even if a client disconnects
        self._num_waiting = 0

    async def moderate(self, request: Request) -> dict[str, Any]:
        if self._num_waiting >= self._limits.max_waiting:
            raise _RequestError(503, f"{self._num_waiting} requests are already waiting; retry later")
        self._num_waiting += 1
        try:
            texts = _parse_texts(await self._body(request), self._limits)
            results = [self._result(await self._scores(text)) for text in texts]
        finally:
            self._num_waiting -= 1
        return {"id": f"modr-{uuid.uuid4().hex}", "model": self._scorer.name, "results": results}

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._limits.max_body_bytes:
                raise _RequestError(413, f"the body has more than {self._limits.max_body_bytes:,} bytes")
        return bytes(body)

    async def _scores(self, text: str) -> Mapping[str, float]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._scorer.scores, text)
        except Exception as error:  # only this request fails; the server continues
            log.exception("a text could not be scored")
            raise _RequestError(500, "the classifier failed") from error

    def _result(self, scores: Mapping[str, float]) -> dict[str, Any]:
        categories = {
            label: score >= _FLAG_THRESHOLD and label not in self._harmless for label, score in scores.items()
        }
        return {
            "flagged": any(categories.values()),
            "categories": categories,
            "category_scores": dict(scores),
        }


def _parse_texts(body: bytes, limits: ModerationLimits) -> list[str]:
    try:
        given = orjson.loads(body)["input"]
    except (ValueError, LookupError, TypeError) as error:
        raise _RequestError(400, 'the body must be JSON: {"input": "a text"}, or a list of texts') from error
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise _RequestError(400, "input must be a text or a list of texts")
    if len(texts) > limits.max_inputs:
        raise _RequestError(
            400, f"input has {len(texts):,} texts; at most {limits.max_inputs:,} are accepted"
        )
    num_characters = sum(map(len, texts))
    if num_characters > limits.max_characters:
        raise _RequestError(
            400, f"input has {num_characters:,} characters; at most {limits.max_characters:,} are accepted"
        )
    return texts


def _json_response(status: int, content: Mapping[str, Any]) -> Response:
    headers = {"retry-after": "1"} if status == 503 else {}
    return Response(orjson.dumps(content), status, headers, "application/json")

"""A text classifier behind OpenAI's moderation API."""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, Request, Response

log = logging.getLogger(__name__)

_FLAGGED_FROM = 0.5
_BYTES_A_CHARACTER = 12  # as JSON may write one: two escapes of six
_BYTES_AROUND = 4_096


class TextScorer(Protocol):
    """Calls do not overlap."""

    name: str

    def scores(self, text: str) -> Mapping[str, float]:
        """By label, in 0…1. Raises `ValueError` where there are none."""
        ...


@dataclass(frozen=True)
class ModerationLimits:
    """What one request may hold, and how many requests may be under way at a time."""

    max_inputs: int = 32
    max_characters: int = 16_000
    max_waiting: int = 64

    @property
    def max_body_bytes(self) -> int:
        return self.max_characters * _BYTES_A_CHARACTER + _BYTES_AROUND


def create_moderation_app(
    scorer: TextScorer, limits: ModerationLimits | None = None, harmless: Sequence[str] = ()
) -> FastAPI:
    """`POST /v1/moderations` and `GET /healthz`. The labels that are `harmless` flag nothing."""
    desk = _Desk(scorer, limits or ModerationLimits(), frozenset(harmless))
    app = FastAPI(title="diffuserve moderate", openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "model": scorer.name}

    @app.post("/v1/moderations")
    async def moderations(request: Request) -> Response:
        try:
            return _answer(200, await desk.moderate(request))
        except _Refusal as refusal:
            kind = "invalid_request_error" if refusal.status < 500 else "server_error"
            return _answer(refusal.status, {"error": {"message": str(refusal), "type": kind}})

    return app


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Desk:
    """Takes requests in, one text at a time, and no more than it can hold."""

    def __init__(self, scorer: TextScorer, limits: ModerationLimits, harmless: frozenset[str]) -> None:
        self._scorer = scorer
        self._limits = limits
        self._harmless = harmless
        self._thread = ThreadPoolExecutor(1, "classifier")  # calls do not overlap, even if a client goes
        self._num_waiting = 0

    async def moderate(self, request: Request) -> dict[str, Any]:
        if self._num_waiting >= self._limits.max_waiting:
            raise _Refusal(503, f"{self._num_waiting} requests wait already; ask again later")
        self._num_waiting += 1
        try:
            texts = _texts(await self._body(request), self._limits)
            results = [self._result(await self._scores(text)) for text in texts]
        finally:
            self._num_waiting -= 1
        return {"id": f"modr-{uuid.uuid4().hex}", "model": self._scorer.name, "results": results}

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._limits.max_body_bytes:
                raise _Refusal(413, f"the body has more than {self._limits.max_body_bytes:,} bytes")
        return bytes(body)

    async def _scores(self, text: str) -> Mapping[str, float]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._scorer.scores, text)
        except Exception as error:  # this text alone failed; the server goes on
            log.exception("a text could not be scored")
            raise _Refusal(500, "the classifier failed") from error

    def _result(self, scores: Mapping[str, float]) -> dict[str, Any]:
        categories = {
            label: score >= _FLAGGED_FROM and label not in self._harmless for label, score in scores.items()
        }
        return {
            "flagged": any(categories.values()),
            "categories": categories,
            "category_scores": dict(scores),
        }


def _texts(body: bytes, limits: ModerationLimits) -> list[str]:
    try:
        given = orjson.loads(body)["input"]
    except (ValueError, LookupError, TypeError) as error:
        raise _Refusal(400, 'the body must be JSON: {"input": "a text"}, or a list of texts') from error
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise _Refusal(400, "input must be a text or a list of texts")
    if len(texts) > limits.max_inputs:
        raise _Refusal(400, f"input has {len(texts):,} texts; at most {limits.max_inputs:,} are taken")
    num_characters = sum(map(len, texts))
    if num_characters > limits.max_characters:
        raise _Refusal(
            400, f"input has {num_characters:,} characters; at most {limits.max_characters:,} are taken"
        )
    return texts


def _answer(status: int, content: Mapping[str, Any]) -> Response:
    headers = {"retry-after": "1"} if status == 503 else {}
    return Response(orjson.dumps(content), status, headers, "application/json")

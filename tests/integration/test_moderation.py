"""Scores from a moderation API whose server may misbehave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidParams, ModerationUnavailable
from diffuserve.remote.json_api import JsonApiConfig
from diffuserve.safety.moderation_api.client import ModerationClassifier
from support.scripted_server import Reply, ScriptedServer, moderation_reply, too_slow
from support.waiting import HANG_SECONDS

KEY = "sk-secret"
FINE = moderation_reply({"sexual": 0.1})


@pytest.fixture
async def classifier(elsewhere: ScriptedServer) -> AsyncIterator[ModerationClassifier]:
    classifier = ModerationClassifier(elsewhere.url, key=KEY, timeout_seconds=HANG_SECONDS)
    yield classifier
    await classifier.close()


async def test_openais_categories_map_to_the_policys(
    elsewhere: ScriptedServer, classifier: ModerationClassifier
) -> None:
    elsewhere.always = moderation_reply(
        {
            "sexual": 0.1,
            "sexual/minors": 0.2,
            "hate": 0.3,
            "hate/threatening": 0.25,
            "harassment": 0,
            "harassment/threatening": 0.4,
            "self-harm": 0.05,
            "self-harm/intent": 0.5,
            "self-harm/instructions": 0.1,
            "violence": 0.1,
            "violence/graphic": 1,
            "illicit/violent": 0.7,
        }
    )
    assert await classifier.scores("a cat") == {
        "sexual": 0.1,
        "sexual_minors": 0.2,
        "hate": 0.3,
        "harassment": 0.4,
        "self_harm": 0.5,
        "violence": 1.0,
        "illicit_violent": 0.7,
    }


async def test_the_prompt_is_sent_with_the_key(elsewhere: ScriptedServer) -> None:
    elsewhere.always = FINE
    classifier = ModerationClassifier(elsewhere.url, model="m", key=KEY)
    await classifier.scores("a cät\n")
    await classifier.close()
    [request] = elsewhere.requests
    assert (request.method, request.path) == ("POST", "/v1/moderations")
    assert request.json == {"input": "a cät\n", "model": "m"}
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>"),
        Reply(b"null"),
        Reply({"results": []}),
        Reply({"results": [{"flagged": False}]}),
        Reply({"results": [{"category_scores": []}]}),
        moderation_reply({}),
        moderation_reply({"sexual": float("nan")}),
        moderation_reply({"sexual": 0.1, "violence": None}),
        moderation_reply({"sexual": True}),
        moderation_reply({"sexual": "0.1"}),
        moderation_reply({"sexual": 1.5}),
        moderation_reply({"sexual": -1}),
        moderation_reply({"sexual": 10**400}),
        Reply(b"[" * 100_000),
        Reply({"error": KEY}, status=500),
        Reply({"error": KEY}, status=429),
        Reply({"error": KEY}, status=401),
        Reply(b"", status=204),
        Reply(b"", status=307, headers={"location": "/elsewhere"}),
        Reply(b"\x1f\x8b", headers={"content-encoding": "gzip"}),
        Reply(FINE.content, is_cut=True),
        Reply(b"x" * 300_000),
        None,
    ],
)
async def test_an_invalid_response_raises_an_error(
    elsewhere: ScriptedServer, classifier: ModerationClassifier, reply: Reply | None
) -> None:
    elsewhere.always = reply
    with pytest.raises(ModerationUnavailable) as error:
        await classifier.scores("a cat")
    assert KEY not in str(error.value)
    assert error.value.retry_after > 0
    assert {request.path for request in elsewhere.requests} == {"/v1/moderations"}, "no redirect is followed"
    assert len(elsewhere.requests) <= 2


@pytest.mark.parametrize("reply", too_slow(FINE), ids=["late", "dripping"])
async def test_a_slow_server_times_out(elsewhere: ScriptedServer, reply: Reply) -> None:
    elsewhere.always = reply
    classifier = ModerationClassifier(elsewhere.url, timeout_seconds=0.5)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(ModerationUnavailable, match=r"within 0\.5 s"):
            await classifier.scores("a cat")
    await classifier.close()


async def test_an_endless_response_is_aborted(
    elsewhere: ScriptedServer, classifier: ModerationClassifier
) -> None:
    elsewhere.always = Reply(b"{", is_endless=True)
    with pytest.raises(ModerationUnavailable):
        await classifier.scores("a cat")
    assert elsewhere.num_sent < 16 << 20, "no more than sockets hold"


async def test_a_broken_connection_is_retried_once(
    elsewhere: ScriptedServer, classifier: ModerationClassifier
) -> None:
    elsewhere.always = FINE
    elsewhere.script.append(None)
    assert await classifier.scores("a cat") == {"sexual": 0.1}


async def test_an_unreachable_server_raises_an_error() -> None:
    classifier = ModerationClassifier("http://127.0.0.1:1")
    with pytest.raises(ModerationUnavailable, match="cannot be reached"):
        await classifier.scores("a cat")
    await classifier.close()


@pytest.mark.parametrize("base", ["http://h", "http://h/", "http://h/v1", "http://h/v1/moderations"])
def test_the_url_may_or_may_not_end_with_v1(base: str) -> None:
    config = JsonApiConfig(url_setting="prompt_filter", url=base, path="/moderations")
    assert config.call_url == "http://h/v1/moderations"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://h"},
        {"url": "http://"},
        {"url": "http://h:99999"},
        {"url": "http://me:secret@h"},
        {"key": "secret\n"},
        {"timeout_seconds": 0.0},
    ],
)
def test_invalid_settings_are_refused_at_the_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams) as refused:
        ModerationClassifier(**({"url": "http://h"} | wrong))
    assert "secret" not in str(refused.value)

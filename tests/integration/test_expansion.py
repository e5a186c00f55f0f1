"""Prompt expansion by a chat API whose server may misbehave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.cache import CachedExpander
from diffuserve.prompts.chat import ChatConfig, ChatExpander
from support.scripted_server import Reply, ScriptedServer, chat_reply, too_slow
from support.waiting import HANG_SECONDS

KEY = "sk-secret"
LONG = chat_reply("A cat on a sofa, in warm light.")
HTML = Reply(b"<html>", headers={"content-type": "text/html"})
ZIPPED = Reply(b"\x1f\x8b", headers={"content-type": "application/json", "content-encoding": "gzip"})


@pytest.fixture
async def expander(elsewhere: ScriptedServer) -> AsyncIterator[ChatExpander]:
    config = ChatConfig(url=elsewhere.url, model="writer", key=KEY, timeout_seconds=HANG_SECONDS)
    expander = ChatExpander(config)
    yield expander
    await expander.close()


async def test_a_prompt_is_expanded(elsewhere: ScriptedServer, expander: ChatExpander) -> None:
    elsewhere.always = LONG
    expansion = await expander.expand("a cat", 2**63 - 1)
    assert expansion == Expansion("A cat on a sofa, in warm light.", ExpansionOutcome.EXPANDED)
    [request] = elsewhere.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json["messages"][1] == {"role": "user", "content": "a cat"}
    assert 0 <= request.json["seed"] < 2**31
    assert {"model", "temperature", "max_tokens"} <= request.json.keys()


async def test_the_seed_is_sent(elsewhere: ScriptedServer, expander: ChatExpander) -> None:
    elsewhere.always = LONG
    for seed in (7, 7, 8):
        await expander.expand("a cat", seed)
    assert [request.json["seed"] for request in elsewhere.requests] == [7, 7, 8]


@pytest.mark.parametrize(
    "reply",
    [
        HTML,
        ZIPPED,
        Reply(b"{}"),
        Reply(b'{"choices": ['),
        Reply({"error": KEY}, status=500),
        Reply({"error": KEY}, status=401),
        Reply(b"", status=204),
        Reply(b"", status=307, headers={"location": "/elsewhere"}),
        Reply(b"", status=302, headers={"location": "http://[bad"}),
        Reply({}, is_cut=True),
        None,
        Reply(b"x" * 300_000),
    ],
)
async def test_an_invalid_response_returns_the_original_prompt(
    elsewhere: ScriptedServer, expander: ChatExpander, reply: Reply | None
) -> None:
    elsewhere.always = reply
    expansion = await expander.expand("a cat", 1)
    assert (expansion.prompt, expansion.outcome) == ("a cat", ExpansionOutcome.ERROR)
    assert expansion.message
    assert KEY not in expansion.message
    assert {request.path for request in elsewhere.requests} == {"/v1/chat/completions"}, (
        "no redirect is followed"
    )


@pytest.mark.parametrize("reply", too_slow(LONG), ids=["late", "dripping"])
async def test_a_slow_server_times_out(elsewhere: ScriptedServer, reply: Reply) -> None:
    elsewhere.always = reply
    expander = ChatExpander(ChatConfig(url=elsewhere.url, model="writer", timeout_seconds=0.5))
    async with asyncio.timeout(HANG_SECONDS):
        expansion = await expander.expand("a cat", 1)
    assert (expansion.prompt, expansion.outcome) == ("a cat", ExpansionOutcome.TIMEOUT)
    await expander.close()


async def test_an_endless_response_is_aborted(elsewhere: ScriptedServer, expander: ChatExpander) -> None:
    elsewhere.always = Reply(b"{", is_endless=True)
    assert (await expander.expand("a cat", 1)).outcome is ExpansionOutcome.ERROR
    assert elsewhere.num_sent < 16 << 20, "no more than sockets hold"


async def test_a_broken_connection_is_retried_once(elsewhere: ScriptedServer, expander: ChatExpander) -> None:
    elsewhere.always = LONG
    elsewhere.script.append(None)
    assert (await expander.expand("a cat", 1)).outcome is ExpansionOutcome.EXPANDED
    assert len(elsewhere.requests) == 2


async def test_an_unreachable_server_returns_the_original_prompt() -> None:
    expander = ChatExpander(ChatConfig(url="http://127.0.0.1:1", model="writer"))
    expansion = await expander.expand("a cat", 1)
    await expander.close()
    assert (expansion.prompt, expansion.outcome) == ("a cat", ExpansionOutcome.ERROR)


async def test_cookies_are_not_stored(elsewhere: ScriptedServer, expander: ChatExpander) -> None:
    headers = {"content-type": "application/json", "set-cookie": "who=you"}
    elsewhere.always = Reply(LONG.content, headers=headers)
    for _ in range(2):
        await expander.expand("a cat", 1)
    assert all("cookie" not in request.headers for request in elsewhere.requests)


async def test_a_cached_expansion_sends_no_request(elsewhere: ScriptedServer) -> None:
    cached = CachedExpander(ChatExpander(ChatConfig(url=elsewhere.url, model="writer")))
    elsewhere.script.extend([chat_reply("A cat, once."), chat_reply("A cat, twice.")])
    at_once = await asyncio.gather(*(cached.expand("a cat", 1) for _ in range(5)))
    assert {expansion.prompt for expansion in [*at_once, await cached.expand("a cat", 1)]} == {"A cat, once."}
    assert len(elsewhere.requests) == 1
    await cached.close()


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://h", "http://h/v1/chat/completions"),
        ("http://h/", "http://h/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("https://h/api/v1/chat/completions", "https://h/api/v1/chat/completions"),
    ],
)
def test_the_url_may_or_may_not_end_with_v1(url: str, asked: str) -> None:
    assert ChatConfig(url=url, model="m").api.call_url == asked


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://h"},
        {"url": "h:1"},
        {"url": "http://"},
        {"url": "http://h:99999"},
        {"url": "http://me:secret@h"},
        {"url": "http://h?key=secret"},
        {"model": ""},
        {"key": "secret\n"},
        {"key": "sécret"},
        {"timeout_seconds": 0.0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": float("inf")},
    ],
)
def test_invalid_settings_are_refused_at_the_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams) as refused:
        ChatConfig(**({"url": "http://h", "model": "m"} | wrong))
    assert "secret" not in str(refused.value).replace("?key=secret", "")


def test_a_key_is_not_shown() -> None:
    assert KEY not in repr(ChatConfig(url="http://h", model="m", key=KEY))

"""Prompt expansion by a chat API, over a transport in this process."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.chat import ChatConfig, ChatExpander

CONFIG = ChatConfig(url="http://host", model="writer", key="secret", temperature=0.2, max_tokens=50)


def expander(handler: Callable[[httpx.Request], httpx.Response]) -> ChatExpander:
    return ChatExpander(CONFIG, httpx.MockTransport(handler))


def completion(text: str) -> httpx.Response:
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return httpx.Response(200, stream=httpx.ByteStream(json.dumps({"choices": [choice]}).encode()))


async def test_the_request_has_the_prompt_the_seed_and_the_settings() -> None:
    bodies: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        assert str(request.url) == "http://host/v1/chat/completions"
        assert request.headers["authorization"] == "Bearer secret"
        return completion("A cat on a sofa.")

    expansion = await expander(handler).expand("a cat", 2**31 + 7)
    assert expansion == Expansion("A cat on a sofa.", ExpansionOutcome.EXPANDED)
    [body] = bodies
    system, user = body.pop("messages")
    assert (system["role"], user) == ("system", {"role": "user", "content": "a cat"})
    assert body == {"model": "writer", "seed": 7, "temperature": 0.2, "max_tokens": 50, "stream": False}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), ExpansionOutcome.TIMEOUT),
        (httpx.ConnectError("refused"), ExpansionOutcome.ERROR),
        (httpx.ReadError("reset"), ExpansionOutcome.ERROR),
    ],
)
async def test_a_failed_call_returns_the_original_prompt(error: Exception, outcome: ExpansionOutcome) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    expansion = await expander(handler).expand("a cat", 1)
    assert (expansion.prompt, expansion.outcome) == ("a cat", outcome)
    assert expansion.message.startswith("the language model ")


def test_the_identity_has_everything_that_decides_the_text() -> None:
    def identity(**values: Any) -> str:
        return ChatExpander(ChatConfig(**({"url": "http://host", "model": "writer"} | values))).identity

    assert identity(url="http://other", key="k", timeout_seconds=1.0) == identity()
    others: list[dict[str, Any]] = [
        {"model": "m"},
        {"system_prompt": "s"},
        {"temperature": 0.0},
        {"max_tokens": 1},
    ]
    assert len({identity(), *(identity(**values) for values in others)}) == 5


def test_a_model_is_required() -> None:
    with pytest.raises(InvalidParams, match="expander_model"):
        ChatConfig(url="http://host", model="")

"""Prompt expansion by a language model behind the chat completions API (vLLM, Ollama, llama.cpp)."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from diffuserve.domain.errors import InvalidParams
from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.completion import parse_completion
from diffuserve.remote.json_api import JsonApi, JsonApiConfig, RemoteCallFailed, RemoteCallTimedOut

DEFAULT_SYSTEM_PROMPT = (
    "You write prompts for a model that draws images. Rewrite what the user asks for as one paragraph of "
    "at most 120 words that describes the finished image: the subject first, then its surroundings, "
    "composition, light, colors, materials and style. Keep everything the user names: every object, "
    "number, color, name and quoted text. Add nothing that contradicts it, and no people that it does not "
    "call for. Answer with the paragraph alone."
)
_PATH = "/chat/completions"
_NUM_SEEDS = 2**31  # some servers store a seed in a signed 32-bit integer


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """A chat API, its model, and how to prompt it.

    `url` is the API's base, with or without `/v1`; `timeout_seconds` bounds a whole call. Raise
    `InvalidParams` for values with which no call can succeed.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 10.0
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    temperature: float = 0.7
    max_tokens: int = 400

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidParams("expander_model", self.model, "name the model that expands the prompts")
        _ = self.api  # checks the URL, the key and the timeout

    @property
    def api(self) -> JsonApiConfig:
        return JsonApiConfig(
            url_setting="expander_url",
            url=self.url,
            path=_PATH,
            key=self.key,
            timeout_seconds=self.timeout_seconds,
        )


class ChatExpander:
    """Expands each prompt by one request to a chat API."""

    def __init__(self, config: ChatConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._config = config
        self._api = JsonApi(config.api, transport)
        self.identity = repr((config.model, config.system_prompt, config.temperature, config.max_tokens))

    async def expand(self, prompt: str, seed: int) -> Expansion:
        """Return the model's text within `timeout_seconds`, or the original prompt with the reason."""
        try:
            content = await self._api.post(self._body(prompt, seed))
        except RemoteCallTimedOut as error:
            return Expansion(prompt, ExpansionOutcome.TIMEOUT, f"the language model {error}")
        except RemoteCallFailed as error:
            return Expansion(prompt, ExpansionOutcome.ERROR, f"the language model {error}")
        return parse_completion(prompt, content)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    def _body(self, prompt: str, seed: int) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": self._config.system_prompt},
            {"role": "user", "content": prompt},
        ]
        return {
            "model": self._config.model,
            "messages": messages,
            "seed": seed % _NUM_SEEDS,
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "stream": False,
        }

"""Servers that can be put under load, by the API that they speak."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.machine_load import listeners
from diffuserve.bench.outcomes import Reply
from diffuserve.bench.targets.a1111 import A1111
from diffuserve.bench.targets.comfyui import ComfyUI
from diffuserve.bench.targets.diffuserve import Diffuserve
from diffuserve.bench.targets.openai import OpenAI
from diffuserve.bench.targets.template import Template
from diffuserve.domain.errors import InvalidParams


class LoadTarget(Protocol):
    """A server under load."""

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        """Return what was asked for, once all its bytes are here. Raise `RequestFault`."""


@dataclass(frozen=True)
class TargetOptions:
    """What a target may need to know: the model, and the file of a template."""

    model: str | None = None
    template: Path | None = None


_MAKERS: Mapping[str, Callable[[TargetOptions], LoadTarget]] = {
    "diffuserve": lambda options: Diffuserve(options.model),
    "openai": lambda options: OpenAI(options.model),
    # docs.sglang.io/diffusion/api/openai_api, docs.vllm.ai/projects/vllm-omni/en/stable/serving/videos_api
    "sglang": lambda options: OpenAI(options.model, extra="top-level"),
    "vllm-omni": lambda options: OpenAI(options.model, extra="top-level", clips_by="form"),
    "a1111": lambda options: A1111(options.model),
    "comfyui": lambda options: ComfyUI(options.model),
    "http": lambda options: Template.load(options.template, options.model),
}
KINDS = tuple(_MAKERS)


@dataclass(frozen=True)
class Address:
    """Where a target is, and which API it speaks."""

    kind: str
    url: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address that `URL` or `KIND=URL` writes. Raise `InvalidParams`."""
        kind, separator, url = text.partition("=")
        if not separator or "://" in kind:
            kind, url = "diffuserve", text
        if kind not in KINDS:
            raise InvalidParams("target", text, f"{kind!r} is no API known here; known: {', '.join(KINDS)}")
        if not url.startswith(("http://", "https://")):
            raise InvalidParams("target", text, "must be a URL, such as http://127.0.0.1:8000")
        return cls(kind, url.rstrip("/"))

    def local_processes(self) -> list[int]:
        """Return the processes that listen at the address, if it is of this machine."""
        parts = urlsplit(self.url)
        if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            return []
        return listeners(parts.port or (443 if parts.scheme == "https" else 80))

    def __str__(self) -> str:
        return self.url if self.kind == "diffuserve" else f"{self.kind}={self.url}"


def make_target(address: Address, options: TargetOptions) -> LoadTarget:
    """Return what speaks the API of an address. Raise `InvalidParams`."""
    return _MAKERS[address.kind](options)

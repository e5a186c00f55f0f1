"""OpenAI's API of images and videos: ours, SGLang's, vLLM-Omni's, and OpenAI's own."""

import asyncio
import base64
import binascii
from typing import Any, Literal

from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble

_LOOK_SECONDS = 0.25
_ENDED = frozenset({"completed", "failed", "cancelled", "canceled", "expired"})


class OpenAI:
    """Images come in the response, as base64 or by URL; a clip is followed by its id.

    With `extra` as `top-level` steps, seed and the like stand among OpenAI's own fields, as servers of open
    models take them; without, they are left out, since OpenAI's refuses what it does not know. `clips_by` is
    how a server takes requests for clips.
    """

    def __init__(
        self,
        model: str | None,
        extra: Literal["none", "top-level"] = "none",
        clips_by: Literal["json", "form"] = "json",
    ) -> None:
        self._model = model
        self._takes_extra = extra == "top-level"
        self._sends_form = clips_by == "form"

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        """Ask for images or for a clip."""
        return await (self._images(http, asked) if asked.kind is LoadKind.IMAGE else self._clip(http, asked))

    async def _images(self, http: Http, asked: LoadRequest) -> Reply:
        body = {**self._body(asked), "n": asked.num_outputs}
        if self._takes_extra:
            body["response_format"] = "b64_json"
        found = await http.json("POST", "/v1/images/generations", body)
        return Reply(tuple([await _image(http, each) for each in found["data"]]))

    async def _clip(self, http: Http, asked: LoadRequest) -> Reply:
        clip = await http.json("POST", "/v1/videos", self._body(asked), as_form=self._sends_form)
        while clip["status"] not in _ENDED:
            await asyncio.sleep(_LOOK_SECONDS)
            clip = await http.json("GET", f"/v1/videos/{clip['id']}")
        if clip["status"] != "completed":
            raise RequestFault(Trouble.FAILED, str((clip.get("error") or {}).get("code", clip["status"])))
        return Reply((Output(await http.content(f"/v1/videos/{clip['id']}/content")),))

    def _body(self, asked: LoadRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": asked.prompt}
        if self._model:
            body["model"] = self._model
        if asked.width and asked.height:
            body["size"] = f"{asked.width}x{asked.height}"
        if self._takes_extra:
            body |= {name: value for name, value in asked.fields.items() if name != "num_images"}
        return body


async def _image(http: Http, found: dict[str, Any]) -> Output:
    if url := found.get("url"):
        return Output(await http.content(url, has_key=False))
    try:
        return Output(base64.b64decode(found["b64_json"], validate=True))
    except (KeyError, binascii.Error) as error:
        raise RequestFault(Trouble.WRONG_OUTPUT, "neither a URL nor base64") from error

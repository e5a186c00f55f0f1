"""AUTOMATIC1111's API, which other servers and plugins speak too."""

import base64
import binascii
from typing import Any

from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble

_NAMES = {"num_inference_steps": "steps", "guidance_scale": "cfg_scale", "num_images": "batch_size"}


class A1111:
    """`/sdapi/v1/txt2img`; a model is chosen by the server's own option for one request."""

    def __init__(self, model: str | None) -> None:
        self._model = model

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        """Draw in one request."""
        if asked.kind is not LoadKind.IMAGE:
            raise RequestFault(Trouble.REFUSED, "this API draws no clips")
        found = await http.json("POST", "/sdapi/v1/txt2img", self._body(asked))
        try:
            contents = [base64.b64decode(each.rpartition(",")[2], validate=True) for each in found["images"]]
        except (KeyError, binascii.Error) as error:
            raise RequestFault(Trouble.WRONG_OUTPUT, "no base64") from error
        return Reply(tuple(Output(content) for content in contents))

    def _body(self, asked: LoadRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": asked.prompt}
        body |= {_NAMES.get(name, name): value for name, value in asked.fields.items()}
        if asked.width and asked.height:
            body |= {"width": asked.width, "height": asked.height}
        if self._model:
            body["override_settings"] = {"sd_model_checkpoint": self._model}
        return body

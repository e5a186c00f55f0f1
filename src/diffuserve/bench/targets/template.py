"""Any other server whose images come in the response, described by a small file."""

import base64
import binascii
from pathlib import Path
from string import Template as Text
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diffuserve.bench.http import Http
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.outcomes import Output, Reply, RequestFault, Trouble
from diffuserve.domain.errors import InvalidParams

_EXAMPLE = """\
path: /predict
body: {prompt: $prompt, size: [$width, $height], steps: $num_inference_steps}
output: images.0
is: base64          # or url, or raw: the response itself
"""


class Template(BaseModel):
    """The request that a server takes, and where its response has the output.

    In `body` a string that is only `$NAME` becomes the value itself, a number as a number; among others it is
    put in as text. `output` is a path of keys and places; `*` is each item of a list.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(pattern="^/")]
    method: Literal["POST", "PUT", "GET"] = "POST"
    body: Any = None
    output: str = ""
    is_: Annotated[Literal["base64", "url", "raw"], Field(alias="is")] = "raw"
    model: str | None = None

    @classmethod
    def load(cls, path: Path | None, model: str | None) -> Self:
        """Return what the file describes. Raise `InvalidParams`."""
        if path is None:
            raise InvalidParams("template", "", f"an http target needs such a file:\n{_EXAMPLE}")
        try:
            return cls.model_validate({**yaml.safe_load(path.read_text()), "model": model})
        except OSError as error:
            raise InvalidParams("template", str(path), f"cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, ValidationError, TypeError) as error:
            raise InvalidParams("template", str(path), f"{error}\nFor example:\n{_EXAMPLE}") from error

    async def draw(self, http: Http, asked: LoadRequest) -> Reply:
        """Send the request, and take the outputs from its response."""
        size = {"width": asked.width, "height": asked.height}
        values = {"prompt": asked.prompt, "model": self.model, **size, **asked.fields}
        response = await http.send(self.method, self.path, _filled(self.body, values))
        if self.is_ == "raw":
            return Reply((Output(response.content),))
        try:
            found = _at(response.json(), self.output.split(".") if self.output else [])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RequestFault(Trouble.WRONG_OUTPUT, f"nothing at {self.output!r}") from error
        return Reply(tuple([await self._output(http, str(each)) for each in found]))

    async def _output(self, http: Http, text: str) -> Output:
        if self.is_ == "url":
            return Output(await http.content(text, has_key=False))
        try:
            return Output(base64.b64decode(text.rpartition(",")[2], validate=True))
        except binascii.Error as error:
            raise RequestFault(Trouble.WRONG_OUTPUT, "no base64") from error


def _filled(part: Any, values: dict[str, Any]) -> Any:
    """Return the body with values in the place of names."""
    if isinstance(part, dict):
        return {name: _filled(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if isinstance(part, str) and part.startswith("$") and part[1:] in values:
        return values[part[1:]]
    return Text(part).safe_substitute(values) if isinstance(part, str) else part


def _at(found: Any, path: list[str]) -> list[Any]:
    """Return what stands at a path: one thing, or each of a list's."""
    if not path:
        return [found]
    name, *rest = path
    if name == "*":
        return [each for item in found for each in _at(item, rest)]
    return _at(found[int(name) if isinstance(found, list) else name], rest)

"""Bodies of jobs that are submitted, from what a program gives by name."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.input_file import is_file_id
from diffuserve.domain.requests.params import FIELDS, GenerationParams


def job_body(prompt: str | GenerationParams, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a new job: fields of a request go into its `input`, all others stand beside it.

    A field that is `None` is left out. Raise `InvalidParams` for a bad value of a request, for the name of a
    local file, and for several prompts.
    """
    if not isinstance(prompt, str | GenerationParams):
        raise InvalidParams("prompt", prompt, "must be text; several are a batch: `client.batches.submit`")
    given = {name: value for name, value in fields.items() if value is not None}
    drawn = {name: given.pop(name) for name in fields if name in FIELDS and name in given}
    params = GenerationParams(prompt=prompt, **drawn) if isinstance(prompt, str) else replace(prompt, **drawn)
    _check_names(params)
    return {"input": params.to_dict(), **given}


def _check_names(params: GenerationParams) -> None:
    """Raise `InvalidParams` for a text that names a file here: as an image it means an id or a URL."""
    for field, image in params.input_images:
        if isinstance(image, str) and not is_file_id(image) and os.path.isfile(image):
            raise InvalidParams(field, image, f'is a file here: give Path("{image}"), which is uploaded')

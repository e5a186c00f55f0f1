"""The body of a batch from a file, as OpenAI's API has it."""

import re
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field

from diffuserve.api.files.expiry import ExpiresAfter
from diffuserve.api.http.storable import Storable
from diffuserve.api.submit.request_bodies import RequestBody, WebhookUrl
from diffuserve.domain.jobs.file_batch import Endpoint, NewFileBatch
from diffuserve.domain.jobs.webhook import FILE_BATCH_EVENTS, Webhook
from diffuserve.jobs.batches.submission import new_batch_id

INPUT_FILE = "input_file_id"
"""The field by which a body is known as one of OpenAI's API, and not one of ours."""

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}
_MAX_DAYS = 7


def _check_endpoint(endpoint: str) -> str:
    if endpoint not in get_args(Endpoint):
        raise ValueError(f"must be one of {', '.join(get_args(Endpoint))}")
    return endpoint


def _check_window(window: str) -> str:
    if not (match := _WINDOW.fullmatch(window)) or _seconds(match) > _MAX_DAYS * 86_400:
        raise ValueError(f'must be a time such as "24h", of {_MAX_DAYS} days at most')
    return window


def _seconds(match: re.Match[str]) -> float:
    return int(match[1]) * _SECONDS[match[2]]


_Key = Annotated[str, Field(min_length=1, max_length=64), Storable]
_Value = Annotated[str, Field(max_length=512), Storable]


class FileBatchBody(RequestBody):
    """Batch whose items are the lines of an uploaded file, as in OpenAI's API."""

    input_file_id: Annotated[
        str,
        Field(min_length=1, max_length=64, description="Id of a file with the purpose `batch`."),
    ]
    endpoint: Annotated[
        str, AfterValidator(_check_endpoint), Field(json_schema_extra={"enum": list(get_args(Endpoint))})
    ]
    completion_window: Annotated[str, AfterValidator(_check_window)] = Field(
        default="24h", description="Time within which it ends: minutes, hours or days, 7 days at most."
    )
    metadata: Annotated[dict[_Key, _Value], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None
    webhook_url: WebhookUrl | None = Field(
        default=None, description="URL to call with OpenAI's event when it has ended."
    )

    def new_batch(self, tenant_id: str, usual_seconds: float, base_url: str) -> NewFileBatch:
        """Return the batch; its output is kept for `usual_seconds` unless the body says how long."""
        asked, match = self.output_expires_after, _WINDOW.fullmatch(self.completion_window)
        assert match is not None, "pydantic has checked it"
        values: dict[str, Any] = self.model_dump(exclude={"output_expires_after", "webhook_url"})
        url = self.webhook_url
        return NewFileBatch(
            **values,
            id=new_batch_id(),
            tenant_id=tenant_id,
            window_seconds=_seconds(match),
            output_seconds=usual_seconds if asked is None else asked.seconds,
            base_url=base_url,
            webhook=None if url is None else Webhook(url, FILE_BATCH_EVENTS, base_url),
        )

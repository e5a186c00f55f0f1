"""How long the files of batches are kept, as OpenAI's API says it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diffuserve.api.door.forms import Form
from diffuserve.api.http.field_errors import nested_errors

CREATED_AT = "created_at"
MIN_SECONDS, MAX_SECONDS = 3_600, 2_592_000
_NAME = "expires_after"


class ExpiresAfter(BaseModel):
    """Seconds after its creation for which a file is kept: an hour to thirty days."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_SECONDS, le=MAX_SECONDS)]


def kept_seconds(form: Form) -> float | None:
    """Return the seconds that a form asks for; `None` if it does not. Raise `RequestValidationError`."""
    prefix = f"{_NAME}["
    said = {name: texts[0] for name, texts in form.texts.items() if name.startswith(prefix)}
    if not said:
        return None
    values = {name.removeprefix(prefix).removesuffix("]"): text for name, text in said.items()}
    try:
        return float(ExpiresAfter.model_validate_strings(values).seconds)
    except ValidationError as error:
        raise nested_errors(("body", _NAME), error, ExpiresAfter) from error

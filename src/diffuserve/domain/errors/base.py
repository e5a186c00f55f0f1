"""The root of the errors, and what is wrong with values."""

from typing import ClassVar

from diffuserve.domain.text.shortened import shortened


class DiffuserveError(Exception):
    """The root of this project's errors; `code` is stable and meant for machines.

    Over HTTP an error has this `status`, `None` if no route means to raise it; a retry may help if it
    `is_retryable`; and its attributes of the names in `facts` are told as well.

    Remedy: catch it to catch all.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int | None] = None
    is_retryable: ClassVar[bool] = False
    facts: ClassVar[tuple[str, ...]] = ()


class InvalidParams(DiffuserveError, ValueError):
    """A parameter is invalid, or the request does not fit into memory; nothing was started.

    Remedy: the message holds `field`, `value` and `remedy`, which are attributes as well.
    """

    code = "invalid_params"
    status = 422

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={shortened(value)}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class ModelNotCapable(InvalidParams):
    """The model cannot honor a parameter that others can, such as a negative prompt.

    Remedy: omit the parameter; it is refused rather than ignored.
    """

    code = "model_not_capable"


class ImageTooLarge(InvalidParams):
    """The image would have more pixels than the model generates.

    Remedy: request a smaller image.
    """

    code = "picture_too_large"
    status = 413

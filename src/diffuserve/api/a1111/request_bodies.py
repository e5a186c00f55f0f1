"""Bodies of AUTOMATIC1111's API. Its clients send sixty fields, and null for any of them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from diffuserve.api.http.storable import Storable
from diffuserve.domain.requests.request_bounds import MAX_PROMPT_CHARACTERS

_Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS), Storable]
_Name = Annotated[str, Field(max_length=200), Storable]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class DrawBody(BaseModel):
    """`POST /sdapi/v1/txt2img` and `img2img`: what is honored of them, and in `model_extra` the others.

    Ranges are those of a request's fields, which are checked later.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: _Text | None = None
    negative_prompt: _Text | None = None
    seed: int | None = -1
    steps: int | None = None
    cfg_scale: _Number | None = None
    width: int | None = None
    height: int | None = None
    batch_size: int | None = 1
    n_iter: int | None = 1
    sampler_name: _Name | None = None
    sampler_index: _Name | None = None
    scheduler: _Name | None = None
    eta: _Number | None = None
    denoising_strength: _Number | None = None
    init_images: Annotated[list[str], Field(max_length=64)] | None = None
    mask: str | None = None
    inpainting_mask_invert: int | None = 0
    override_settings: dict[str, Any] | None = None
    alwayson_scripts: dict[str, Any] | None = None
    send_images: bool | None = True

    @property
    def checkpoint(self) -> str | None:
        """The model that the request itself names."""
        name = (self.override_settings or {}).get("sd_model_checkpoint")
        return name if isinstance(name, str) and name else None


class ControlUnit(BaseModel):
    """Unit of the script ControlNet."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    enabled: bool | None = True
    image: str | dict[str, Any] | None = None
    input_image: str | None = None
    module: str | None = None
    model: _Name | None = None
    weight: _Number | None = 1.0
    guidance_start: _Number | None = 0.0
    guidance_end: _Number | None = 1.0

    @property
    def picture(self) -> str | None:
        """The image in base64, wherever this version of the client has it."""
        found = self.image.get("image") if isinstance(self.image, dict) else self.image
        found = found or self.input_image
        return found if isinstance(found, str) else None


class PngBody(BaseModel):
    """`POST /sdapi/v1/png-info`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    image: str

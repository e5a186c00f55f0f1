"""Forms that bring images to OpenAI's API, and what becomes of their files."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from diffuserve.api.auth.access import Caller
from diffuserve.api.door.forms import FORM, MAX_FORM_BYTES, Form, FormFile, parse_form
from diffuserve.api.door.json_route import content_type_of, is_json, unsupported_media_type
from diffuserve.api.door.origin import RequestOrigin
from diffuserve.api.door.upload import BatchUploads, Body
from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.api.http.field_errors import nested_errors, validation_error
from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.api.openai.video_bodies import VideoBody, VideoEditBody
from diffuserve.api.submit.request_bodies import NewJobBody, RequestBody
from diffuserve.api.submit.submission import Submission
from diffuserve.domain.requests.input_image import ImageInput
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES

_IMAGES_AT_ONCE = 4  # images of the largest size in one form; more if they are smaller
_FILE_FIELDS = ("image", "image[]", "mask")
_REFERENCE, _NAMES = "input_reference", ("file_id", "image_url")
_MAY_BE_EMPTY = ("prompt", "negative_prompt")  # otherwise the client sends null as an empty text

_CLIP = "video"
VideoEdit = TypeVar("VideoEdit", bound=VideoEditBody)
AnyBody = TypeVar("AnyBody", bound=RequestBody)


@dataclass(frozen=True)
class UploadedImages:
    """Images of a form and their mask. They are read and stored only once their job is possible."""

    images: Sequence[FormFile]
    mask: FormFile | None = None

    @property
    def names(self) -> list[str]:
        """Names that stand for the images until they are stored."""
        return [file.name or "image" for file in self.images]

    @property
    def mask_name(self) -> str | None:
        """Name that stands for the mask until it is stored."""
        return None if self.mask is None else self.mask.name or "mask"

    def hash(self) -> str:
        """Return a hash of the images and their mask; it blocks for some milliseconds a megabyte."""
        found = sha256()
        for file in (*self.images, *([self.mask] if self.mask else [])):
            found.update(f"{file.field} {len(file.span)}\n".encode())
            for chunk in file.chunks():
                found.update(chunk)
        return found.hexdigest()

    async def resolve(self, intake: FileIntake, tenant_id: str, params: GenerationParams) -> GenerationParams:
        """Return the parameters with the images, which are stored; raise what `FileIntake.add` raises.

        A mask marks what to change by transparent pixels or, if its format has no transparency, by white
        ones.
        """
        for file in (*self.images, *([self.mask] if self.mask else [])):
            intake.check_size(file.field.removesuffix("[]"), file.name, len(file.content))
        images: list[ImageInput] = []
        for image in self.images:
            stored = await intake.add(tenant_id, Received("image", image.name, image.content))
            images.append(stored.as_input())
        mask: ImageInput | None = None
        if self.mask is not None:
            masking = Received("mask", self.mask.name, self.mask.content, "alpha")
            mask = (await intake.add(tenant_id, masking)).as_input("L")
        return replace(params, image=images[0] if len(images) == 1 else images, mask=mask)


@dataclass(frozen=True)
class ImageBodies:
    """Receives bodies that may bring images, in bounded time and memory."""

    batch_uploads: BatchUploads
    file_intake: FileIntake

    @asynccontextmanager
    async def _received(self, request: Request, tenant_id: str, max_bytes: int) -> AsyncIterator[Body]:
        """Receive a body, and hold it within the block."""
        remedy = "send smaller images, or upload them with POST /v1/files"
        async with self.batch_uploads.received(request, tenant_id, max_bytes, remedy) as body:
            yield body

    @asynccontextmanager
    async def json(self, request: Request, tenant_id: str, model: type[AnyBody]) -> AsyncIterator[AnyBody]:
        """Receive JSON, and hold it within the block. Raise `RequestValidationError`."""
        async with self._received(request, tenant_id, self.batch_uploads.config.max_body_bytes) as body:
            yield _json_fields(body, model)

    @asynccontextmanager
    async def form(self, request: Request, tenant_id: str, *content_types: str) -> AsyncIterator[Form]:
        """Receive a form, and hold it within the block.

        Raise `HTTPException` 415 for none of `content_types`.
        """
        if content_type_of(request) != FORM:
            raise unsupported_media_type(request, *content_types)
        max_image_bytes = self.batch_uploads.config.max_input_file_bytes
        max_bytes = _IMAGES_AT_ONCE * max_image_bytes + MAX_FORM_BYTES
        async with self._received(request, tenant_id, max_bytes) as body:
            yield await asyncio.to_thread(parse_form, request, body)

    async def edit(
        self, request: Request, tenant_id: str, model: type[VideoEdit]
    ) -> tuple[VideoEdit, str | None]:
        """Return a body that names a clip, and the sha256 of the clip's file if that is in its place.

        Raise `RequestValidationError`.
        """
        if is_json(content_type_of(request)):
            async with self.json(request, tenant_id, model) as named:
                return named, None
        async with self.form(request, tenant_id, FORM, "application/json") as form:
            files = [file.content for file in form.files if file.field == _CLIP]
            return _edit_fields_of(form, model), sha256(files[0]).hexdigest() if files else None

    async def submission(
        self,
        caller: Caller,
        body: NewJobBody,
        origin: RequestOrigin,
        uploads: UploadedImages | None = None,
    ) -> Submission:
        """Return the submission of a body, and of the images of its form if it came in one."""
        submission = Submission(caller.tenant_id, body, origin.base_url, origin.idempotency_key)
        if uploads is None:
            return submission
        brought = await asyncio.to_thread(uploads.hash) if origin.idempotency_key else ""
        return replace(submission, resolve=partial(uploads.resolve, self.file_intake), brought=brought)


def fields_of(form: Form, model: type[AnyBody]) -> tuple[AnyBody, UploadedImages]:
    """Return the texts of a form as `model`, and its images. Raise `RequestValidationError`."""
    try:
        fields = model.model_validate_strings(_values(form, _FILE_FIELDS, model))
    except ValidationError as error:
        raise nested_errors(("body",), error, model) from error
    return fields, _images(form)


def video_fields_of(form: Form) -> tuple[VideoBody, UploadedImages | None]:
    """Return the texts of a form for a clip, and the image in it, if any. Raise `RequestValidationError`.

    OpenAI's client sends the parts of a named image as `input_reference[file_id]`.
    """
    values = dict[str, Any](_values(form, (_REFERENCE,), VideoBody))
    named = {name: values.pop(key) for name in _NAMES if (key := f"{_REFERENCE}[{name}]") in values}
    try:
        body = VideoBody.model_validate_strings(values | ({_REFERENCE: named} if named else {}))
    except ValidationError as error:
        raise nested_errors(("body",), error, VideoBody) from error
    return body, _reference(form, bool(named))


def _edit_fields_of(form: Form, model: type[VideoEdit]) -> VideoEdit:
    """Return the texts of a form that names a clip by `video[id]`. Raise `RequestValidationError`."""
    values = dict[str, Any](_values(form, (_CLIP,), model))
    if (named := values.pop(f"{_CLIP}[id]", None)) is not None:
        values[_CLIP] = {"id": named}
    try:
        return model.model_validate_strings(values)
    except ValidationError as error:
        raise nested_errors(("body",), error, model) from error


def _reference(form: Form, is_named: bool) -> UploadedImages | None:
    files = [file for file in form.files if file.field == _REFERENCE]
    if len(files) + is_named > 1:
        raise validation_error(("body", _REFERENCE), "is sent more than once; send one image")
    return UploadedImages(files) if files else None


def _json_fields(body: Body, model: type[AnyBody]) -> AnyBody:
    """Return JSON as `model`. Raise `RequestValidationError`."""
    try:
        return model.model_validate(parsed_json(body[:], model))
    except UnreadableJson as error:
        raise validation_error(("body",), str(error)) from error
    except ValidationError as error:
        raise nested_errors(("body",), error, model) from error


def _values(form: Form, file_fields: Collection[str], model: type[RequestBody]) -> dict[str, str]:
    """Return the texts of a form, and for files that mean nothing here their names: they are ignored."""
    others = {file.field: file.name or "file" for file in form.files if file.field not in file_fields}
    for name in others:
        if name in model.model_fields:
            raise validation_error(("body", name), "must be a text, not a file")
    return others | _texts(form, file_fields)


def _texts(form: Form, file_fields: Collection[str]) -> dict[str, str]:
    for name, texts in form.texts.items():
        if name in file_fields:
            remedy = "must be a file; images are named by their ids or URLs in JSON"
            raise validation_error(("body", name.removesuffix("[]")), remedy)
        if len(texts) > 1:
            raise validation_error(("body", name), f"was sent {len(texts)} times; send it once")
    return {name: texts[0] for name, texts in form.texts.items() if texts[0] or name in _MAY_BE_EMPTY}


def _images(form: Form) -> UploadedImages:
    images = [file for file in form.files if file.field in ("image", "image[]")]
    masks = [file for file in form.files if file.field == "mask"]
    if masks and not images:
        raise validation_error(("body", "mask"), "needs the image that it belongs to; give image")
    if not 1 <= len(images) <= MAX_INPUT_IMAGES:
        times = f"is sent {len(images)} times; send it 1 to {MAX_INPUT_IMAGES} times"
        raise validation_error(("body", "image"), times)
    if len(masks) > 1:
        raise validation_error(("body", "mask"), f"is sent {len(masks)} times; send it once")
    return UploadedImages(images, masks[0] if masks else None)

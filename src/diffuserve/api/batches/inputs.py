"""Images that the items of a batch name: files by their ids, and data URLs."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace

from diffuserve.api.batches.item_parser import BatchItemParser, input_key
from diffuserve.api.files.inputs import InputImages, no_such_image
from diffuserve.api.http.field_errors import validation_error
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.input_file import InputFile
from diffuserve.domain.requests.params import GenerationParams

_MAX_DATA_URLS = 100
_FETCHED = "items of a batch name no https URLs; upload the image with POST /v1/files, and name its id"
_TOO_MANY = f"more than {_MAX_DATA_URLS} images come as data URLs; upload them with POST /v1/files"


async def with_inputs(
    images: InputImages, parser: BatchItemParser, numbers: Collection[int]
) -> BatchItemParser:
    """Return the parser with the files that the items of these numbers name.

    Raise `RequestValidationError`, which names the item, and what `FileIntake.add` raises.
    """
    tenant_id = parser.tenant_id
    found = await images.known(tenant_id, {name for number in numbers for _, name in _names(parser, number)})
    files: dict[tuple[str, str], InputFile] = {}
    num_brought = 0
    for number in numbers:
        await asyncio.sleep(0)
        for field, name in _names(parser, number):
            key = input_key(field, name)
            if key in files:
                continue
            location = (*parser.request.location(number), "input", field)
            try:
                num_brought += name not in found
                files[key] = found.get(name) or await _brought(images, tenant_id, field, name, num_brought)
            except InvalidParams as error:
                raise validation_error(location, error.remedy) from error
    return replace(parser, inputs=files)


async def _brought(images: InputImages, tenant_id: str, field: str, name: str, num_brought: int) -> InputFile:
    if name[:6].lower() == "https:":
        raise InvalidParams(field, name, _FETCHED)
    if name[:5].lower() != "data:":
        raise InvalidParams(field, name, no_such_image(name))
    if num_brought > _MAX_DATA_URLS:
        raise InvalidParams(field, "data:", _TOO_MANY)
    return await images.bring_in(tenant_id, field, name)


def _names(parser: BatchItemParser, number: int) -> Iterator[tuple[str, str]]:
    """Yield field and name of each image that an item names."""
    for field, image in GenerationParams.from_dict(parser.parse(number).input).input_images:
        assert isinstance(image, str)
        yield field, image

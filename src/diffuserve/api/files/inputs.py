"""Images that requests name: the ids of uploaded files, data URLs and https URLs."""

import binascii
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from diffuserve.api.files.fetch import ImageFetcher
from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.input_file import InputFile, is_file_id
from diffuserve.domain.requests.image_fields import mode_of
from diffuserve.domain.requests.input_image import ImageInput
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.jobs.store import JobStore

_WAYS = "give the id of an uploaded file, a data: URL, or an https: URL"
_EXAMPLE = "data:image/png;base64,iVBORw0KGgo…"


@dataclass(frozen=True)
class InputImages:
    """The images that requests of tenants name: found among their files, or brought in from elsewhere."""

    store: JobStore
    file_intake: FileIntake
    image_fetcher: ImageFetcher

    async def resolve(self, tenant_id: str, params: GenerationParams) -> GenerationParams:
        """Return a tenant's parameters with an `InputImage`, without pixels, in place of each name.

        Files are looked up first, so that nothing is fetched for a request that names a missing one. Raise
        `InvalidParams`, which names the field, for a name that leads to no image of the tenant, and what
        `FileIntake.add` raises.
        """
        files = await self.known(tenant_id, (image for _, image in params.input_images))
        check_names(params, files)

        for field, image in params.input_images:
            if isinstance(image, str) and image not in files:
                files[image] = await self.bring_in(tenant_id, field, image)

        def found(field: str, image: ImageInput) -> ImageInput:
            return files[image].as_input(mode_of(field)) if isinstance(image, str) else image

        resolved = params.with_images(found)
        return replace(resolved, image=resolved.images[0]) if len(resolved.images) == 1 else resolved

    async def known(self, tenant_id: str, names: Iterable[object]) -> dict[str, InputFile]:
        """Return those of the tenant's images that are among the names."""
        ids = [name for name in names if isinstance(name, str) and is_file_id(name)]
        found = await self.store.files.get_many(ids, tenant_id)
        return {file_id: file for file_id, file in found.items() if file.is_image}

    async def bring_in(self, tenant_id: str, field: str, name: str) -> InputFile:
        """Return the tenant's file of an image that comes with a URL."""
        mode = mode_of(field)
        if name[:5].lower() == "data:":
            received = Received(field, "data:", decoded(field, name), mode)
            return await self.file_intake.add(tenant_id, received)
        async with self.image_fetcher.fetched(tenant_id, field, name) as data:
            received = Received(field, urlsplit(name).path or "image", data, mode)
            return await self.file_intake.add(tenant_id, received)


def check_names(params: GenerationParams, files: Mapping[str, InputFile]) -> None:
    """Raise `InvalidParams` for an image name of no known form, or with the id of an unknown file."""
    for field, image in params.input_images:
        if not isinstance(image, str) or image in files:
            continue
        scheme = image.partition(":")[0].lower()
        if scheme not in ("data", "https"):
            raise InvalidParams(field, image, no_such_image(image))


def decoded(field: str, url: str) -> bytes:
    """Return the bytes in a data URL. Raise `InvalidParams`."""
    head, comma, content = url[5:].partition(",")
    kind, *options = head.lower().split(";")
    if not comma or not kind.startswith("image/") or options[-1:] != ["base64"]:
        raise InvalidParams(field, f"data:{head}", f"must be an image in base64, such as {_EXAMPLE}")
    try:
        return b64decode(content, validate=True)
    except binascii.Error as error:
        raise InvalidParams(field, f"data:{head}", f"is not base64 ({error}); encode it again") from error


def no_such_image(name: str) -> str:
    """Return the reason why a name that is not an image's URL names no image."""
    if is_file_id(name):
        return "is no file of yours; it may have expired: upload it again with POST /v1/files"
    if name.lower().startswith("http:"):
        return "must be an https URL; or upload the image with POST /v1/files, and name its id"
    return f"names no image; {_WAYS}"

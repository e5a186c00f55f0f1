"""Applications of fal, as programs name them: which of this server's models each stands for."""

from collections.abc import Collection, Iterator

from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import ModelNotFound
from diffuserve.jobs.reads.operations import OfferedModel

_TASKS = frozenset(
    {
        *("text-to-image", "image-to-image", "inpainting", "inpaint", "edit", "lora", "stream"),
        *("text-to-video", "image-to-video", "text-to-audio"),
    }
)
"""Last parts of names that say what is asked for, which the arguments say as well."""
_DEFAULT = "default"


async def model_of(catalog: Catalog, application: str) -> OfferedModel:
    """Return the model that an application stands for. Raise `ModelNotFound`.

    `fal-ai/sana/sprint` stands for `sana-sprint`, `sprint` or `sana`, the first of them that is served;
    `diffuserve/default` for the model of jobs that name none.
    """
    names = list(_names(application))
    if names == [_DEFAULT]:
        return await catalog.pick(None)
    return await catalog.model(_served(names, await catalog.models()) or names[0])


def handle_of(application: str) -> str:
    """Return the first two parts of an application's name, which its requests are found by."""
    return "/".join(application.split("/")[:2])


def _names(application: str) -> Iterator[str]:
    owner, *parts = (part for part in application.split("/") if part)
    while len(parts) > 1 and parts[-1] in _TASKS:
        parts.pop()
    if not parts:
        raise ModelNotFound(f"application {owner!r} names no model; name it OWNER/MODEL: diffuserve/{owner}")
    yield from dict.fromkeys(("-".join(parts), parts[-1], parts[0]))


def _served(names: Collection[str], models: Collection[str]) -> str | None:
    by_name = {model.lower(): model for model in models}
    return next((by_name[name.lower()] for name in names if name.lower() in by_name), None)

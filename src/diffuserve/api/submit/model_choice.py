"""The model that draws a job: its own, or the one that it falls back to.

A job falls back at its submission, where no worker has its own model, or in the queue, where none starts it
in time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.domain.errors import InvalidParams, ModelNotFound
from diffuserve.domain.workers.readiness import ModelStatus
from diffuserve.jobs.reads.operations import OfferedModel

_FIELD = "fallback_model"


@dataclass(frozen=True)
class ModelChoice:
    """The model of a job, and the one that it becomes a job of if it does not start in time.

    `requested` is the name of the model that was asked for, where its fallback is chosen at once.
    """

    served: OfferedModel
    fallback: OfferedModel | None = None
    requested: str | None = None


async def choose_model(catalog: Catalog, body: NewJobBody) -> ModelChoice:
    """Choose by what workers have now. Raise what `Catalog.pick` raises."""
    name = body.options.fallback_model
    if name is None:
        return ModelChoice(await catalog.pick(body.model, body.kind))
    with naming_fallback(name):
        fallback = await catalog.pick(name, body.kind)
    try:
        served = await catalog.pick(body.model, body.kind)
    except ModelNotFound:
        return ModelChoice(fallback, requested=body.model)
    if served.spec.name == fallback.spec.name:
        raise InvalidParams(_FIELD, name, "is the job's own model; name another one, or leave it out")
    if await _has_none(catalog, served) and not await _has_none(catalog, fallback):
        return ModelChoice(fallback, requested=served.spec.name)
    return ModelChoice(served, fallback)


@contextmanager
def naming_fallback(name: str | None) -> Iterator[None]:
    """Say of what is refused in the block that the fallback model refuses it."""
    try:
        yield
    except InvalidParams as error:
        remedy = f"cannot draw this: {error}; name another one, or leave it out"
        raise InvalidParams(_FIELD, name, remedy) from error
    except ModelNotFound as error:
        raise ModelNotFound(f"{_FIELD}: {error}") from error


async def _has_none(catalog: Catalog, served: OfferedModel) -> bool:
    """Return whether no worker has a model, or is about to."""
    return await catalog.status(served.spec.name) is ModelStatus.UNAVAILABLE

"""Orders of operators to a worker: to fetch a model of a known name, and to load it beside its own."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from diffuserve.domain.bounds import Message, Printable, WholeAmount
from diffuserve.domain.errors import Conflict, InvalidParams
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.text.nearest import did_you_mean

_MAX_MODELS = 100


class OrderState(StrEnum):
    """State of an order; the last three are its ends."""

    FETCHING = "fetching"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        return self in (OrderState.LOADED, OrderState.FAILED, OrderState.CANCELED)


@dataclass(frozen=True, kw_only=True)
class ModelOrder(Resource):
    """Order to have a model in memory; its progress is in the worker's report."""

    id: str
    model: str


@dataclass(frozen=True, kw_only=True)
class KeptOrders(Resource):
    """Orders that were carried out, the first one first; a worker of the same name gets them again."""

    data: tuple[ModelOrder, ...]


@dataclass(frozen=True, kw_only=True)
class OrderProgress:
    """Progress of the order with this `id`: bytes that have arrived, and the `reason` if it failed."""

    id: Printable
    model: Printable
    state: OrderState
    bytes_read: WholeAmount = 0
    bytes_total: WholeAmount = 0
    reason: Message = ""


@dataclass(frozen=True, kw_only=True)
class ModelToHave:
    """Model that a worker can get: one that ships, or that of a `hub_id` at a pinned version.

    `num_bytes` is the size of its files, about what its weights take in memory; null where it is not known.
    `makes` says what it draws. `needs_consent`: its license restricts what its results may be used for.
    """

    name: Printable
    license: Printable
    makes: Printable
    hub_id: Printable = ""
    num_bytes: WholeAmount | None = None
    is_here: bool = False
    needs_consent: bool = False


@dataclass(frozen=True, kw_only=True)
class OrdersReport:
    """What a worker that takes orders can get, the bytes that all its models may have, and its last order."""

    models: Annotated[tuple[ModelToHave, ...], Field(max_length=_MAX_MODELS)] = ()
    room_bytes: WholeAmount | None = None
    progress: OrderProgress | None = None


def check_order(
    worker: str, report: OrdersReport | None, given: ModelOrder | None, model: str, accepts_license: bool
) -> None:
    """Raise for an order that the worker would not take, with the remedy.

    `given` is the last one that it was given. Raise `Conflict` if it takes none, or is at another one, and
    `InvalidParams` for a model that it cannot get or that does not fit, or a license that is not accepted.
    """
    if report is None:
        raise Conflict(f"worker {worker} takes no orders of models; start it with --model-orders")
    if given is not None and not is_over(report.progress, given):
        raise Conflict(f"worker {worker} is at {given.model}; wait for it, or cancel that order")
    found = next((listed for listed in report.models if listed.name == model), None)
    if found is None:
        names = [listed.name for listed in report.models]
        remedy = f"is none that worker {worker} can get{did_you_mean(model, names)}"
        raise InvalidParams("model", model, f"{remedy}; its report lists them")
    if problem := misfit(found.num_bytes, report.room_bytes):
        raise InvalidParams("model", model, problem)
    if found.needs_consent and not found.is_here and not accepts_license:
        remedy = f"{model} is under the {found.license}, which restricts uses; read it, and accept it"
        raise InvalidParams("accept_license", accepts_license, remedy)


def is_over(progress: OrderProgress | None, order: ModelOrder) -> bool:
    """Return whether a worker that is so far has ended an order."""
    return progress is not None and progress.id == order.id and progress.state.is_final


def misfit(num_bytes: int | None, room_bytes: int | None) -> str:
    """Return why a model does not fit into a worker's memory, and the remedy; empty if it does."""
    if num_bytes is None or room_bytes is None or num_bytes <= room_bytes:
        return ""
    return (
        f"takes about {num_bytes / 1e9:.1f} GB for its weights, and the models of this worker may have "
        f"{room_bytes / 1e9:.1f} GB; order it from a worker with more memory, or choose a smaller model"
    )

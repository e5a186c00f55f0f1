"""Prices and rates of machines, from a file with a date, since both change."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.unit_cost import cost_of_thousand
from diffuserve.domain.workers.machines import MachineKind

_MAX_BYTES = 1 << 20
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class MachinePrices:
    """A machine's prices of an hour, and the images that it draws in an hour in which it is always busy.

    `p95` are the seconds that 95 of 100 images take at most. A price that is left out means that there is no
    such machine.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    images_per_hour: _Positive
    on_demand: _Positive | None = None
    spot: _Positive | None = None
    p95: _Positive | None = None


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """Machines with their prices on a day."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    date: date
    machines: Annotated[tuple[MachinePrices, ...], Field(min_length=1, max_length=1_000)]


def read_prices(path: Path) -> PriceList:
    """Read a list in YAML. Raise `InvalidParams`, with the place in the file, if it is none."""
    try:
        with path.open("rb") as file:
            return TypeAdapter(PriceList).validate_python(yaml.safe_load(file.read(_MAX_BYTES)))
    except OSError as error:
        raise InvalidParams("prices", str(path), f"cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise InvalidParams("prices", str(path), f"is no YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InvalidParams("prices", str(path), f"{place}: {first['msg']}") from None


def costs_of(prices: PriceList, shares: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each machine and kind, with what 1,000 images cost at each share of useful time."""
    return [
        {
            "machine": machine.name,
            "kind": kind.value,
            "price_per_hour": price,
            "images_per_hour": machine.images_per_hour,
            "p95": machine.p95,
            "per_thousand": {
                f"{share:g}": cost_of_thousand(price, machine.images_per_hour, share)
                for share in dict.fromkeys((1.0, *shares))
            },
        }
        for machine in prices.machines
        for kind, price in (
            (MachineKind.ON_DEMAND, machine.on_demand),
            (MachineKind.SPOT, machine.spot),
        )
        if price is not None
    ]

"""Workloads: a mix of requests as a file, of which a seed makes the same requests each time."""

import random
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from diffuserve.bench.load_request import LoadKind, LoadRequest
from diffuserve.bench.slo import parse_slo
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Band

_PRESETS = files("diffuserve.bench") / "presets"
_MULTIPLE = 16
"""Sides that follow from a share of pixels are multiples of this, which all families take."""
_MAX_BYTES = 4 * 2**20
_MAX_SEED = 2**31

Weight = Annotated[float, Field(gt=0, le=1e6)]
Side = Annotated[int, Field(ge=16, le=8192)]


class Part(BaseModel):
    """Requests of one shape in a mix.

    A size is `width` and `height`, or a share of the pixels of the model's own size and an aspect ratio, so
    that one workload fits models of any size. A list among `input` is a choice for each request.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    weight: Weight = 1.0
    kind: LoadKind = LoadKind.IMAGE
    width: Side | None = None
    height: Side | None = None
    pixels: Annotated[float, Field(gt=0, le=16)] = 1.0
    aspect: Annotated[str, Field(pattern=r"^\d{1,3}:\d{1,3}$")] = "1:1"
    input: Mapping[str, Any] = {}
    priority: Band | None = None
    slo: str | None = None

    @field_validator("slo")
    @classmethod
    def _reads(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                parse_slo(text)
            except InvalidParams as error:
                raise ValueError(str(error)) from error
        return text

    def size(self, base_side: int) -> tuple[int, int]:
        """Return width and height in pixels, for a model whose own pictures are `base_side` square."""
        if self.width and self.height:
            return self.width, self.height
        wide, high = (int(part) for part in self.aspect.split(":"))
        side = base_side * self.pixels**0.5
        return _rounded(side * (wide / high) ** 0.5), _rounded(side * (high / wide) ** 0.5)


class RequestMix(BaseModel):
    """Parts of a mix, prompts that they share, and tenants by how much they ask for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = ""
    mix: Annotated[tuple[Part, ...], Field(min_length=1, max_length=100)]
    prompts: Annotated[tuple[str, ...], Field(min_length=1, max_length=100_000)]
    tenants: Mapping[str, Weight] = {}

    def requests(self, seed: int, base_side: int) -> Iterator[LoadRequest]:
        """Yield requests without end, the same for a seed."""
        chance = random.Random(f"workload {seed}")  # noqa: S311 (a load, not a secret)
        for _ in count():
            (part,) = chance.choices(self.mix, [part.weight for part in self.mix])
            yield self._asked(part, chance, base_side)

    def _asked(self, part: Part, chance: random.Random, base_side: int) -> LoadRequest:
        width, height = part.size(base_side)
        chosen = {name: _choice(value, chance) for name, value in part.input.items()}
        tenants = list(self.tenants)
        return LoadRequest(
            label=part.label,
            prompt=chance.choice(self.prompts),
            kind=part.kind,
            width=width,
            height=height,
            fields={"seed": chance.randrange(_MAX_SEED), **chosen},
            tenant=chance.choices(tenants, list(self.tenants.values()))[0] if tenants else None,
            priority=part.priority,
            slo=parse_slo(part.slo) if part.slo else None,
        )


def presets() -> list[str]:
    """Return the names of the workloads that come with the package."""
    return sorted(
        path.name.removesuffix(".yaml") for path in _PRESETS.iterdir() if path.name.endswith(".yaml")
    )


def load_workload(name: str) -> RequestMix:
    """Return a preset, or the workload in a YAML file. Raise `InvalidParams`."""
    if name in presets():
        return _parsed(name, (_PRESETS / f"{name}.yaml").read_text())
    path = Path(name)
    if not path.is_file():
        raise InvalidParams("workload", name, f"is neither a file nor one of {', '.join(presets())}")
    if path.stat().st_size > _MAX_BYTES:
        raise InvalidParams("workload", name, f"must have at most {_MAX_BYTES} bytes")
    return _parsed(name, path.read_text())


def _parsed(name: str, text: str) -> RequestMix:
    try:
        return RequestMix.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise InvalidParams("workload", name, f"is not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidParams("workload", name, f"{place}: {first['msg']}") from error


def _choice(value: Any, chance: random.Random) -> Any:
    return chance.choice(value) if isinstance(value, list) else value


def _rounded(side: float) -> int:
    return max(_MULTIPLE, round(side / _MULTIPLE) * _MULTIPLE)

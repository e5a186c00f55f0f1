"""Which layers of diffusers' modules a layer of an adapter file is, however its name is written.

Trainers write `double_blocks.0.img_attn.qkv` or `double_blocks_0_img_attn_qkv`: names are compared with
underscores alone, so that one table serves both. Importing this loads no torch.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")
_ANY = "#"


@dataclass(frozen=True)
class Target:
    """A layer of a diffusers module, and which outputs of the file's layer are its own.

    `pieces` are shares of the outputs, each from and up to a fraction of all, put together in this order.
    """

    layer: str
    pieces: tuple[tuple[Fraction, Fraction], ...] = ((Fraction(0), Fraction(1)),)

    def rows(self, outputs: int) -> list[slice]:
        """Return its rows of a matrix with this many. Raise `ValueError` if they cannot be shared so."""
        bounds = [(first * outputs, last * outputs) for first, last in self.pieces]
        if any(bound.denominator != 1 for piece in bounds for bound in piece):
            raise ValueError(f"{outputs} outputs cannot be shared among the layers they are for")
        return [slice(int(first), int(last)) for first, last in bounds]


Targets = tuple[Target, ...]


class Found(NamedTuple):
    """The layers that a name stands for; `is_own` if it is diffusers' own name of that layer."""

    targets: Targets
    is_own: bool


class _Entry(NamedTuple):
    numbers: tuple[str, ...]
    found: Found


def one(layer: str) -> Targets:
    """Return a layer that is one of diffusers' too."""
    return (Target(layer),)


def shared(*layers: str, shares: tuple[int, ...] = ()) -> Targets:
    """Return layers that are side by side in the file's, with these shares of its outputs, or equal ones."""
    parts = shares or (1,) * len(layers)
    ends = [Fraction(sum(parts[: index + 1]), sum(parts)) for index in range(len(parts))]
    starts = [Fraction(0), *ends[:-1]]
    return tuple(
        Target(layer, ((start, end),)) for layer, start, end in zip(layers, starts, ends, strict=True)
    )


def halves_swapped(layer: str) -> Targets:
    """Return a layer that has scale and shift where the file's has shift and scale."""
    half = Fraction(1, 2)
    return (Target(layer, ((half, Fraction(1)), (Fraction(0), half))),)


class LayerTable:
    """Layers of diffusers' modules by names in files; `#` stands for a number in both.

    A layer that is a target is known by its own name too.
    """

    def __init__(self, named: Mapping[str, Targets]) -> None:
        self._entries = defaultdict[str, list[_Entry]](list)
        own = dict.fromkeys(target.layer for targets in named.values() for target in targets)
        for layer in own:
            self._add(layer, Found(one(layer), is_own=True))
        for name, targets in named.items():
            if name not in own:
                self._add(name, Found(targets, is_own=False))

    def find(self, name: str) -> Found | None:
        """Return the layers that a name without prefix stands for; `None` if it is not known."""
        key, numbers = _key(name)
        for entry in self._entries.get(key, ()):
            if all(wanted in (_ANY, given) for wanted, given in zip(entry.numbers, numbers, strict=True)):
                given = [own for wanted, own in zip(entry.numbers, numbers, strict=True) if wanted == _ANY]
                return _numbered(entry.found, given)
        return None

    def _add(self, pattern: str, found: Found) -> None:
        key, numbers = _key(pattern)
        self._entries[key].append(_Entry(numbers, found))


def _key(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a name with `#` for its numbers, and these."""
    words = name.replace(".", "_").split("_")
    numbers = tuple(word for word in words if _is_number(word))
    return "_".join(_ANY if _is_number(word) else word for word in words), numbers


def _is_number(word: str) -> bool:
    return word == _ANY or _NUMBER.fullmatch(word) is not None


def _numbered(found: Found, numbers: list[str]) -> Found:
    targets = (replace(target, layer=_filled(target.layer, numbers)) for target in found.targets)
    return Found(tuple(targets), found.is_own)


def _filled(layer: str, numbers: list[str]) -> str:
    given = iter(numbers)
    return "".join(next(given) if letter == _ANY else letter for letter in layer)

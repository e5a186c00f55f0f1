"""Requirements of packages, by the descriptions of those that are installed here."""

from collections.abc import Iterable
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(lines: Iterable[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """Return the canonical names of all packages that requirements with these extras bring."""
    found: set[tuple[str, frozenset[str]]] = set()
    _add(lines, extras, found)
    return {name for name, _ in found}


def _add(lines: Iterable[str], extras: frozenset[str], found: set[tuple[str, frozenset[str]]]) -> None:
    environments = [{"extra": extra} for extra in (extras or {""})]
    for wanted in map(Requirement, lines):
        item = (str(canonicalize_name(wanted.name)), frozenset(wanted.extras))
        applies = wanted.marker is None or any(map(wanted.marker.evaluate, environments))
        if applies and item not in found:
            found.add(item)
            _add(requires(wanted.name) or (), item[1], found)

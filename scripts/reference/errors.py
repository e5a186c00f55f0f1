"""Tables of errors by the module that declares them, with the statuses that the API gives them."""

import inspect
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from diffuserve.domain import errors
from diffuserve.domain.errors import DiffuserveError
from reference.markdown import code, prose, table

_HEADINGS = ("code and class", "HTTP", "raised when", "what to do")
_REMEDY = "Remedy: "


def regions() -> Mapping[str, str]:
    """Return a table for each module of the errors, in the order of their declarations."""
    names = [module.name for module in iter_modules(errors.__path__)]
    return {name: table(_HEADINGS, _rows(import_module(f"{errors.__name__}.{name}"))) for name in names}


def _rows(module: ModuleType) -> list[tuple[str, ...]]:
    classes = [kind for kind in vars(module).values() if inspect.isclass(kind)]
    own = [kind for kind in classes if kind.__module__ == module.__name__]
    return [_row(kind) for kind in own if issubclass(kind, DiffuserveError)]


def _row(kind: type[DiffuserveError]) -> tuple[str, ...]:
    first, remedy = _documented(kind)
    others = [base.__name__ for base in kind.__bases__ if base not in (DiffuserveError, Exception)]
    also = f". Also {' and '.join(map(code, others))}" if others else ""
    return f"{code(kind.code)}<br>{code(kind.__name__)}", _http(kind), f"{prose(first)}{also}", prose(remedy)


def _http(kind: type[DiffuserveError]) -> str:
    if kind.status is None:
        return "–"
    return f"{kind.status}, retry" if kind.is_retryable else str(kind.status)


def _documented(kind: type[DiffuserveError]) -> tuple[str, str]:
    """Return the first paragraph of a class's docstring, and the one that names the remedy."""
    paragraphs = inspect.cleandoc(str(kind.__dict__["__doc__"])).split("\n\n")
    remedies = [text.removeprefix(_REMEDY) for text in paragraphs if text.startswith(_REMEDY)]
    return paragraphs[0], " ".join(f"{text[:1].upper()}{text[1:]}" for text in remedies)

"""Tables of a request's fields: what they take, and where they travel."""

from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

from diffuserve.domain.jobs.job_options import JOB_OPTIONS, MAX_TEXT_CHARACTERS, value_type
from diffuserve.domain.requests.params import FIELDS
from diffuserve.domain.requests.request_fields import Dialect, FieldKind, RequestField
from diffuserve.options import option_of
from reference.markdown import code, prose, table

_OPENAI: Mapping[Dialect, str] = {
    Dialect.OPENAI_IMAGES: "images",
    Dialect.OPENAI_EDITS: "edits",
    Dialect.OPENAI_VIDEOS: "videos",
}
_MANY = 4
"""Choices that are counted and not listed."""


def parameters() -> Mapping[str, str]:
    """Return the table of what the fields take."""
    headings = ("field", "default", "allowed", "meaning", "models")
    rows = (
        (code(name), _default(each), _allowed(each), _meaning(each), _models(each))
        for name, each in FIELDS.items()
    )
    return {"parameters": table(headings, rows)}


def names() -> Mapping[str, str]:
    """Return the table of the fields' names."""
    headings = ("field of `input`", "command line", "flat API", "OpenAI's API")
    rows = (
        (code(name), _option(each), _flat(each), ", ".join(_openai(each))) for name, each in FIELDS.items()
    )
    return {"request fields": table(headings, rows), "job options": _options()}


def _options() -> str:
    """Return the table of the options of jobs."""
    headings = ("option", "command line", "allowed", "meaning")
    rows = (
        (code(name), code(_flag(each)), _values(each), prose(option_of(each).help))
        for name, each in JOB_OPTIONS.items()
    )
    return table(headings, rows)


def _flag(declared: Field[Any]) -> str:
    flag = declared.name.replace("_", "-")
    return f"--no-{flag}" if value_type(declared) is bool else f"--{flag}"


def _values(declared: Field[Any]) -> str:
    option, kind = option_of(declared), value_type(declared)
    if kind is bool:
        return "`true`, `false`"
    if option.le is None:
        return f"up to {MAX_TEXT_CHARACTERS} characters"
    low = f"{option.ge:g}" if option.gt is None else f"above {option.gt:g}"
    return f"{low} to {option.le:,.0f}"


def _default(declared: RequestField) -> str:
    return "required" if declared.default is MISSING else code(declared.default)


def _allowed(declared: RequestField) -> str:
    match declared.kind:
        case FieldKind.TEXT:
            return f"up to {declared.max_length:,} characters"
        case FieldKind.CHOICE:
            named = map(code, declared.choices)
            return ", ".join(named) if len(declared.choices) <= _MANY else f"{len(declared.choices)} names"
        case FieldKind.IMAGE | FieldKind.IMAGES | FieldKind.ADAPTERS | FieldKind.CONTROLS:
            return f"up to {declared.max_length}" if declared.max_length else "one"
    low = f"{declared.ge:g}" if declared.gt is None else f"above {declared.gt:g}"
    high = "" if declared.le is None else _number(declared.le)
    return f"{low} to {high}" if high else f"{low} or more"


def _number(value: float) -> str:
    return "2⁶³ − 1" if value == 2**63 - 1 else f"{value:,g}" if value < 1e5 else f"{value:,}"


def _meaning(declared: RequestField) -> str:
    return prose(declared.help.partition("; by default")[0].format(names="path"))


def _models(declared: RequestField) -> str:
    """Say which models take a field, by an attribute of their `ModelSpec` or by their samplers."""
    having = [code(declared.needs)] if declared.needs else []
    if declared.samplers:
        having.append(f"the sampler {' or '.join(map(code, declared.samplers))}")
    return f"those with {' and '.join(having)}" if having else "all"


def _option(declared: RequestField) -> str:
    return "argument" if declared.default is MISSING else ", ".join(map(code, declared.flags))


def _flat(declared: RequestField) -> str:
    is_there = Dialect.FLAT in declared.dialects or declared.default is MISSING
    return code(declared.name_in(Dialect.FLAT)) if is_there else ""


def _openai(declared: RequestField) -> list[str]:
    everywhere = declared.default is MISSING
    return [name for dialect, name in _OPENAI.items() if everywhere or dialect in declared.dialects]

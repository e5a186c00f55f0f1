"""What a modular pipeline of diffusers takes: its blocks have no call of their own, but say it in words.

Each assembled class of blocks has a generated docstring with its workflows, its components and its inputs.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from diffuserve.models.families.any_pipeline.reading.sources import (
    ClassSource,
    class_sources,
    class_tree,
    lineage,
)

MODULAR: Final = "ModularPipeline"
_SECTION = re.compile(
    r"^  (Supported workflows|Components|Configs|Inputs|Outputs):\n(.*?)(?=^  \w|\Z)", re.M | re.S
)
_INPUT = re.compile(r"^      (\w+) \(`(?P<type>[^`]*)`(?P<rest>[^\n]*)\):$", re.M)
_DEFAULT = re.compile(r"defaults to (.*)$")
_NAMED = re.compile(r"(\w+)\s+\(`\w+`\)")
_CONFIG = re.compile(r"(\w+) \(default:\s+([^)]*)\)")
_WORKFLOW = re.compile(r"^    - `\w+`: requires (.*?)(?=^    - |\Z)", re.M | re.S)
_TOLD_BY_BLOCKS = frozenset({"latents", "num_inference_steps", "sigmas", "timesteps"})
"""Inputs that the docstrings say to be needed where only one of several workflows needs them."""


@dataclass(frozen=True)
class BlockInputs:
    """The inputs of a pipeline's blocks, those of them that every workflow needs, its modules and results."""

    arguments: dict[str, Any]
    annotations: dict[str, str]
    required: frozenset[str]
    components: tuple[str, ...]
    settings: dict[str, Any]
    blocks: str
    outputs: tuple[str, ...]


def is_modular(name: str) -> bool:
    """Return whether a class of diffusers is a modular pipeline."""
    return name != MODULAR and any(source.name == MODULAR for source in lineage(name))


def modular_names() -> tuple[str, ...]:
    """Return the modular pipelines of the installed diffusers."""
    return tuple(sorted(filter(is_modular, class_sources())))


def read_blocks(name: str) -> BlockInputs | None:
    """Return what the blocks of a modular pipeline take; `None` if their source does not say it."""
    blocks = _default_blocks(lineage(name))
    if blocks is None or (text := ast.get_docstring(class_tree(blocks))) is None:
        return None
    told = {found[1]: found[2] for found in _SECTION.finditer(text)}
    inputs = list(_INPUT.finditer(told.get("Inputs", "")))
    arguments = {found[1]: _default(found["rest"]) for found in inputs}
    if not arguments:
        return None
    return BlockInputs(
        arguments,
        {found[1]: found["type"] for found in inputs},
        frozenset(_required(told)),
        tuple(_NAMED.findall(told.get("Components", ""))),
        {name: _literal(value) for name, value in _CONFIG.findall(told.get("Configs", ""))},
        blocks.name,
        tuple(_outputs(told)),
    )


def _default_blocks(classes: tuple[ClassSource, ...]) -> ClassSource | None:
    for source in classes:
        for node in class_tree(source).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id="default_blocks_name")], value=ast.Constant(value=str(name))
                ):
                    return class_sources().get(name)
    return None


def _required(told: dict[str, str]) -> Iterator[str]:
    """Yield what each workflow needs, or, of blocks with one way alone, what they say to be needed."""
    workflows = [
        set(re.findall(r"`(\w+)`", each)) for each in _WORKFLOW.findall(told.get("Supported workflows", ""))
    ]
    if workflows:
        yield from set.intersection(*workflows)
        return
    for found in _INPUT.finditer(told.get("Inputs", "")):
        if "*optional*" not in found["rest"] and found[1] not in _TOLD_BY_BLOCKS:
            yield found[1]


def _outputs(told: dict[str, str]) -> Iterator[str]:
    return (found[1] for found in _INPUT.finditer(told.get("Outputs", "")))


def _default(rest: str) -> Any:
    found = _DEFAULT.search(rest)
    return None if found is None else _literal(found[1])


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None

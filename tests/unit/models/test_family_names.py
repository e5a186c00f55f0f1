"""Modules outside the models name no family, so another family changes nothing there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import diffuserve

PACKAGE = Path(diffuserve.__file__).parent
# The models' own home; and the writers of random checkpoints, which are of one family each by their purpose.
ALLOWED = (PACKAGE / "models", *(PACKAGE / "testing").glob("*checkpoints.py"))
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not any(path.is_relative_to(at) for at in ALLOWED))
# Names of checkpoints, which defaults and examples may use, and one that others gave a node.
CHECKPOINTS = re.compile(r"tiny-flux|FLUX\.1[\w-]*|flux-(schnell|dev)|FluxGuidance")
FAMILY = re.compile("flux", re.IGNORECASE)


def names_in(module: Path) -> Iterator[str]:
    """Yield the identifiers, imported names and strings of a module that name the family."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        for name in _names(node):
            if FAMILY.search(CHECKPOINTS.sub("", name)):
                yield f"{module.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}: {name[:80]!r}"


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ImportFrom(module=str(name)) | ast.Constant(value=str(name)):
            yield name


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 100


def test_no_module_outside_the_models_names_a_family() -> None:
    assert [name for module in MODULES for name in names_in(module)] == []


def test_the_search_finds_a_name() -> None:
    assert any("FluxFamily" in found for found in names_in(PACKAGE / "models/families/flux/family.py"))

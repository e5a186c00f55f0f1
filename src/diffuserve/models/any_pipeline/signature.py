"""What a pipeline class of diffusers takes, read from its source: nothing of it is imported."""

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Signature:
    """The arguments of a pipeline's `__call__`, in order, with the defaults that are literals."""

    path: Path
    arguments: dict[str, Any]
    required: frozenset[str]

    @property
    def guidance(self) -> str:
        """The argument that the guidance scale goes to: true guidance where the class guides by default."""
        is_true = (self.arguments.get("true_cfg_scale") or 0) > 1
        return "true_cfg_scale" if is_true or "guidance_scale" not in self.arguments else "guidance_scale"

    def default(self, *names: str, otherwise: Any = None) -> Any:
        found = (self.arguments.get(name) for name in names)
        return next((value for value in found if value is not None), otherwise)


def package_folder() -> Path | None:
    spec = importlib.util.find_spec("diffusers")
    return (
        Path(next(iter(spec.submodule_search_locations)))
        if spec and spec.submodule_search_locations
        else None
    )


@functools.cache
def read_signature(class_name: str) -> Signature | None:
    """Return the signature of a pipeline class, `None` if the installed diffusers has none of that name."""
    root = package_folder()
    if root is None:
        return None
    needle = f"class {class_name}("
    for path in sorted((root / "pipelines").rglob("pipeline_*.py")):
        if "deprecated" in path.parts or needle not in (text := path.read_text("utf-8")):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__call__":
                        return _signature(path, each.args)
    return None


def _signature(path: Path, args: ast.arguments) -> Signature:
    names = [arg.arg for arg in args.args][1:]
    defaults = [None] * (len(names) - len(args.defaults)) + list(args.defaults)
    required = frozenset(names[: len(names) - len(args.defaults)])
    found = {name: _literal(node) for name, node in zip(names, defaults, strict=True)}
    found |= {a.arg: _literal(d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    return Signature(path, found, required)


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None

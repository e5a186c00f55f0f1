"""What a pipeline class of diffusers takes, read from its source: nothing of it is imported."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diffuserve.models.families.any_pipeline.reading.modular import is_modular, read_blocks
from diffuserve.models.families.any_pipeline.reading.sources import (
    class_sources,
    class_tree,
    lineage,
    package_folder,
)

_BASES: Final = "pipelines/pipeline_utils.py"  # of all pipelines, and without a call
_STATES_RATE = re.compile(r"\bfps=(\d{1,3})\b")


@dataclass(frozen=True)
class Signature:
    """A pipeline's call and constructor, in their order, with the defaults that are literals.

    `components` are the arguments of the constructor that are modules, and `optional` those of them that a
    folder may lack; `settings` are its other arguments. `annotations` are the types of the call's arguments
    as they are written.

    `guided_above` are the numbers with which the class compares each scale of guidance, to guide above it:
    a scale without one is an input of the model. `multiples` are the expressions that must divide a side,
    `most_tokens` bounds `max_sequence_length`, `own_defaults` are sizes that the class takes where neither a
    request nor a config says one, and `rate` the frames a second of the class's own example; 0 where it says
    nothing. `outputs` are the names of what a modular pipeline returns, and `blocks` is the class that it is
    made of.
    """

    name: str
    path: str
    arguments: Mapping[str, Any]
    required: frozenset[str]
    components: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    guided_above: Mapping[str, float] = field(default_factory=dict)
    multiples: tuple[str, ...] = ()
    most_tokens: int = 0
    own_defaults: Mapping[str, int] = field(default_factory=dict)
    rate: int = 0
    outputs: tuple[str, ...] = ()
    blocks: str = ""

    @property
    def is_modular(self) -> bool:
        """True if the pipeline is made of blocks, which return one of `outputs` by its name."""
        return bool(self.outputs)

    @property
    def guidance(self) -> str:
        """The argument that the guidance scale goes to: true guidance where the class guides by default."""
        is_true = (self.arguments.get("true_cfg_scale") or 0) > 1
        return "true_cfg_scale" if is_true or "guidance_scale" not in self.arguments else "guidance_scale"

    def may_lack(self, name: str, otherwise: bool) -> bool:
        """Return whether a call may leave an argument out: blocks say it, classes do not (`otherwise`)."""
        return name not in self.required if self.is_modular else otherwise

    def default(self, *names: str) -> Any:
        """Return the first default among the arguments `names` that is not `None`."""
        found = (self.arguments.get(name) for name in names)
        return next((value for value in found if value is not None), None)

    def first(self, *names: str) -> str | None:
        """Return the first of `names` that the call takes."""
        return next((name for name in names if name in self.arguments), None)


@functools.cache
def read_signature(class_name: str) -> Signature | None:
    """Return the signature of a pipeline class, `None` if the installed diffusers has none of that name.

    Methods may be inherited. Raise `InvalidModel` if diffusers is not installed.
    """
    if is_modular(class_name):
        return _modular_signature(class_name)
    trees = [class_tree(source) for source in lineage(class_name) if source.path != _BASES]
    call = _method(trees, "__call__")
    if call is None:
        return None
    path = class_sources()[class_name].path
    optional = _optional(trees)
    init = _method(trees, "__init__")
    built = {} if init is None else _defaults(init.args)
    required = _required(init.args) if init else frozenset[str]()
    modules = tuple(name for name in built if name in required or name in optional)
    arguments, checks = _defaults(call.args), _checks(trees)
    return Signature(
        name=class_name,
        path=path,
        arguments=arguments,
        required=_required(call.args),
        components=modules,
        optional=optional,
        settings={name: value for name, value in built.items() if name not in modules},
        annotations=_annotations(call.args),
        guided_above=_guided_above(checks),
        multiples=tuple(dict.fromkeys(_multiples(checks))),
        most_tokens=max(_most_tokens(checks), default=0),
        own_defaults=_own_defaults(init),
        rate=_rate(path),
    )


def _modular_signature(class_name: str) -> Signature | None:
    taken = read_blocks(class_name)
    if taken is None:
        return None
    return Signature(
        name=class_name,
        path=class_sources()[class_name].path,
        arguments=taken.arguments,
        required=taken.required,
        components=taken.components,
        optional=frozenset(taken.components),  # what is no file of a model is built by the blocks
        settings=taken.settings,
        annotations=taken.annotations,
        outputs=taken.outputs,
        blocks=taken.blocks,
    )


def pipeline_names() -> tuple[str, ...]:
    """Return the pipeline classes of the installed diffusers that it maintains and that can be called."""
    found = class_sources().values()
    mixed = ("Mixin", "Output", "Blocks")
    return tuple(
        sorted(
            source.name
            for source in found
            if source.path.startswith("pipelines/")
            and not source.is_deprecated
            and any("Pipeline" in parent and not parent.endswith(mixed) for parent in source.parents)
        )
    )


def _method(trees: list[ast.ClassDef], name: str) -> ast.FunctionDef | None:
    """Return a method, of the nearest class that has it."""
    methods = (each for tree in trees for each in tree.body if isinstance(each, ast.FunctionDef))
    return next((each for each in methods if each.name == name), None)


def _defaults(args: ast.arguments) -> dict[str, Any]:
    """Return the arguments without `self`, each with its default if that is a literal."""
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    nodes = [None] * (len(names) - len(args.defaults)) + list(args.defaults)
    keywords = zip([arg.arg for arg in args.kwonlyargs], args.kw_defaults, strict=True)
    return {name: _literal(node) for name, node in [*list(zip(names, nodes, strict=True))[1:], *keywords]}


def _required(args: ast.arguments) -> frozenset[str]:
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    lacking = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    needed = names[1 : len(names) - len(args.defaults)]
    return frozenset([*needed, *(arg.arg for arg, default in lacking if default is None)])


def _annotations(args: ast.arguments) -> dict[str, str]:
    given = (arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs) if arg.annotation)
    return {arg.arg: ast.unparse(arg.annotation) for arg in given if arg.annotation}


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _optional(trees: list[ast.ClassDef]) -> frozenset[str]:
    """Return the components that a folder may lack, as the nearest class lists them."""
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and "_optional_components" in map(ast.unparse, node.targets):
                return frozenset(_literal(node.value) or ())
    return frozenset()


def _checks(trees: list[ast.ClassDef]) -> list[ast.AST]:
    """Return the comparisons and the arithmetic of classes, in which they say what they accept."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return [node for node in nodes if isinstance(node, ast.Compare | ast.BinOp)]


def _bounds(checks: list[ast.AST]) -> Iterator[tuple[str, float]]:
    """Yield each name that is compared with a number by `>`, and the number."""
    for node in checks:
        match node:
            case ast.Compare(
                left=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name),
                ops=[ast.Gt()],
                comparators=[ast.Constant(value=int() | float() as value)],
            ):
                yield name.lstrip("_"), float(value)


def _guided_above(checks: list[ast.AST]) -> dict[str, float]:
    """Return the lowest number above which each scale guides."""
    found: dict[str, float] = {}
    for name, value in _bounds(checks):
        if name.endswith(("guidance_scale", "cfg_scale")):
            found[name] = min(value, found.get(name, value))
    return found


def _most_tokens(checks: list[ast.AST]) -> Iterator[int]:
    return (int(value) for name, value in _bounds(checks) if name == "max_sequence_length" and value > 1)


def _multiples(checks: list[ast.AST]) -> Iterator[str]:
    """Yield the expressions of which a side must be a multiple."""
    for node in checks:
        match node:
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                # `height % self.scale * 2` is `(height % self.scale) * 2`, and what was meant is read below
                if isinstance(left, ast.Name) and left.id in ("height", "width"):
                    yield ast.unparse(right)
            case ast.BinOp(left=ast.BinOp(left=ast.Name(id="height" | "width"), op=ast.Mod(), right=right)):
                if isinstance(node.op, ast.Mult):
                    yield f"{ast.unparse(right)} * {ast.unparse(node.right)}"


def _own_defaults(init: ast.FunctionDef | None) -> dict[str, int]:
    """Return the numbers that the constructor keeps as `default_…`, the largest that each may be."""
    found: dict[str, int] = {}
    for node in () if init is None else ast.walk(init):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                numbers = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant)]
                whole = [number for number in numbers if type(number) is int]
                if name.startswith("default_") and whole:
                    found[name.removeprefix("default_")] = max(whole)
    return found


def _rate(path: str) -> int:
    """Return the rate at which a class's example shows its clips."""
    found = _STATES_RATE.search((package_folder() / path).read_text("utf-8"))
    return int(found[1]) if found else 0

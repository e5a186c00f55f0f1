"""The source of the installed diffusers, as text and syntax trees: nothing of it is imported."""

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.extras import Extra

_ROOMS = ("pipelines", "modular_pipelines")  # folders of the package with pipelines
_DEPRECATED = "deprecated"
_CLASS = re.compile(rb"^class (\w+)\(([^)]*)\):", re.MULTILINE)
_NAME = re.compile(r"[A-Z]\w*")


@dataclass(frozen=True)
class ClassSource:
    """Where a class is defined, by a path below the package, and the names of its parents."""

    name: str
    path: str
    parents: tuple[str, ...]

    @property
    def room(self) -> str:
        """The folder of pipelines that the class is in, by which `model_index.json` may name it."""
        return self.path.split("/")[1]

    @property
    def is_deprecated(self) -> bool:
        """True if diffusers no longer maintains it."""
        return _DEPRECATED in self.path.split("/")


def package_folder() -> Path:
    """Return the folder of the installed diffusers. Raise `InvalidModel` with the remedy if it has none."""
    found = importlib.util.find_spec("diffusers")
    if found is None or not found.submodule_search_locations:
        raise InvalidModel(f"it is run by diffusers, which is not installed; {Extra.DIFFUSERS.remedy}")
    return Path(next(iter(found.submodule_search_locations)))


def is_installed() -> bool:
    """Return whether diffusers is installed."""
    return importlib.util.find_spec("diffusers") is not None


def installed_version() -> str:
    """Return the version of the installed diffusers; "" if there is none."""
    try:
        return version("diffusers")
    except PackageNotFoundError:
        return ""


@functools.cache
def class_sources() -> Mapping[str, ClassSource]:
    """Return every class in diffusers' folders of pipelines, by name: one look through the files' text."""
    root = package_folder()
    found: dict[str, ClassSource] = {}
    for path in sorted(path for room in _ROOMS for path in (root / room).rglob("*.py")):
        place = path.relative_to(root).as_posix()
        for name, parents in _CLASS.findall(path.read_bytes()):
            found.setdefault(name.decode(), ClassSource(name.decode(), place, _names(parents.decode())))
    return found


@functools.cache
def public_names() -> frozenset[str]:
    """Return the classes that the package offers by name, as its `__init__.py` lists them."""
    tree = ast.parse((package_folder() / "__init__.py").read_text("utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(text for text in texts if isinstance(text, str) and _NAME.fullmatch(text))


@functools.cache
def transformers_has(name: str) -> bool:
    """Return whether the installed transformers has a class, by its files' text.

    It offers its fast tokenizers and image processors, and its former feature extractors, by other names.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise InvalidModel(f"{name} is of transformers, which is not installed; {Extra.DIFFUSERS.remedy}")
    names = {name, name.removesuffix("Fast"), name.replace("FeatureExtractor", "ImageProcessor")}
    either = "|".join(map(re.escape, names))
    defined = re.compile(rf"^(class ({either})\b|({either})\s*=)".encode(), re.MULTILINE)
    return any(
        defined.search(path.read_bytes())
        for path in _likely_first(Path(found.submodule_search_locations[0]), name)
    )


def _likely_first(root: Path, name: str) -> Iterator[Path]:
    """Yield the files of transformers: those first whose folder begins as the class does."""
    plain = name.lower().replace("_", "")
    likely = [
        path
        for path in (root / "models").iterdir()
        if path.is_dir() and plain.startswith(path.name.replace("_", ""))
    ]
    for folder in sorted(likely, key=lambda path: -len(path.name)):
        yield from sorted(folder.glob("*.py"))
    yield from sorted(root.glob("*.py"))
    yield from sorted(root.rglob("*.py"))


@functools.lru_cache(maxsize=4)
def module_tree(path: str) -> ast.Module:
    """Return the syntax tree of a file of the package."""
    return ast.parse((package_folder() / path).read_text("utf-8"))


def class_tree(source: ClassSource) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    nodes = module_tree(source.path).body
    return next(node for node in nodes if isinstance(node, ast.ClassDef) and node.name == source.name)


def lineage(name: str) -> tuple[ClassSource, ...]:
    """Return a class and those that it inherits from, nearest first, as far as they are pipelines'."""
    source = class_sources().get(name)
    if source is None:
        return ()
    above = [each for parent in source.parents if parent != name for each in lineage(parent)]
    return tuple(dict.fromkeys([source, *above]))


def _names(parents: str) -> tuple[str, ...]:
    return tuple(name.strip().rpartition(".")[2] for name in parents.split(",") if name.strip())

"""The list of modules by folder, from their docstrings; nothing is imported."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tokenize import COMMENT, NL, STRING, generate_tokens

from reference.markdown import code, prose, table

_PACKAGE = Path(__file__).parents[2] / "src" / "diffuserve"
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_INIT = "__init__"


def regions() -> Mapping[str, str]:
    """Return a section for each folder of the package, in the order of their names."""
    folders = sorted({path.parent for path in _PACKAGE.rglob("*.py")})
    return {"modules": "\n".join("\n".join(_section(folder)) for folder in folders)}


def _section(folder: Path) -> Iterator[str]:
    modules = {path.stem: path for path in sorted(folder.glob("*.py"))}
    name = folder.relative_to(_PACKAGE).as_posix()
    yield f"## {code('diffuserve' if name == '.' else f'{name}/')}\n"
    if _INIT in modules:
        yield f"{_summary(modules.pop(_INIT))}\n"
    if modules:
        yield table(
            ("module", "content"), ((code(stem), prose(_summary(path))) for stem, path in modules.items())
        )


def _summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    with path.open(encoding="utf-8") as lines:
        tokens = generate_tokens(lines.readline)
        first = next(token for token in tokens if token.type not in (COMMENT, NL))
    assert first.type == STRING, f"{path} has no docstring"
    text = inspect.cleandoc(ast.literal_eval(first.string))
    return _END_OF_SENTENCE.split(" ".join(text.split("\n\n")[0].split()))[0]

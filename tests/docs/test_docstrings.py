"""Docstrings are sentences: their first line starts with its verb or names its subject."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "training", "scripts")

# A first line that opens with one of these words is a fragment ("Of every module", "Until stopped") or
# hides its subject ("What workers report", "Whoever holds the lease").
FRAGMENT = re.compile(
    r"(of|what|until|unless|by|whether|whose|who|whom|where|when|while|with|without|not|as|from|to|"
    r"for|in|on|at|under|above|below|after|before|between|because|since|whatever|whoever|whichever|"
    r"wherever|their|its|those|that|theirs|nothing|nobody|somebody|anybody|one|ones|none|no|only|"
    r"also|how|why|if|so|but|and|or|than|then|there|here|this|these|they|it|we|our|everything|"
    r"everyone|anything|something)\b",
    re.IGNORECASE,
)

MAYBE_ONE = re.compile(r"\bone\b[\w\s,()\[\].*]*\bin\b")  # to parse all files takes seconds


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first line of each docstring in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def opens_with_a_fragment(line: str) -> bool:
    return FRAGMENT.match(line) is not None


def loop_variables(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each loop variable in a file in which one may be called `one`."""
    text = path.read_text(encoding="utf-8")
    if not MAYBE_ONE.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    yield name.lineno, name.id


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_opens_with_a_fragment(folder: str) -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path)
        if opens_with_a_fragment(text)
    ]
    assert fragments == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_loop_variables_are_named_for_what_they_hold(folder: str) -> None:
    nameless = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in loop_variables(path)
        if name == "one"
    ]
    assert nameless == []


@pytest.mark.parametrize(
    "line", ["Until it is told to stop.", "What workers say.", "Of every module.", "Whether a worker lives."]
)
def test_fragments_are_recognized(line: str) -> None:
    assert opens_with_a_fragment(line)


@pytest.mark.parametrize("line", ["Return `[]` for an unknown job.", "A worker's report.", "`True` if set."])
def test_sentences_are_accepted(line: str) -> None:
    assert not opens_with_a_fragment(line)

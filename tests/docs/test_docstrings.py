"""The prose of the code: docstrings begin with a sentence, and riddles that were solved do not return."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "training", "scripts")

FRAGMENT = re.compile(r"(of|until|unless|whether|whose|whom)\b", re.IGNORECASE)
"""The start of a docstring that is no sentence, such as "Of every module"."""
MAYBE_A_FRAGMENT = re.compile(rf"[\"'](\s|\\\n)*{FRAGMENT.pattern}", re.IGNORECASE)
"""The start of any text that is no sentence: to parse all files takes seconds."""

RIDDLES = {
    re.compile(pattern, re.IGNORECASE): better
    for pattern, better in {
        r"\bput(s|ting)?(\s+\w+){0,3}\s+down\b": "preempt",
        r"\bhand(s|ed|ing)?(\s+\w+){0,2}\s+back\b": "release, return",
        r"\bg[ai]v(e|es|en|ing)\s+way\b": "yield, wait for, be evicted",
        r"(?<!`)\bcompany\b": "other requests, lower-priority requests",
        r"\bheed(s|ed)?\b|\blament(s|ed)?\b": "react to, report",
        r"\bbeautiful\b": "aesthetic score",
        r"\bshut\s+out\b": "ban",
        r"\b(is|are|was|were|be)\s+cut\b(?!\s+(off|short|out))": "is sharded (weights), truncated (a prompt)",
        r"\btold\s+of\b": "was reported, notified of",
        r"\bwhoever\b": "the name of the one who does it",
        r"(?<=\.\s)(?-i:Of)\s+(an?|the|its|those|what)\b": "the subject first: 'For a clip this is …'",
    }.items()
}

MAYBE_ONE = re.compile(r"\bone\b[\w\s,()\[\].*]*\bin\b")


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield getattr(node, "lineno", 1), docstring


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def opens_with_a_fragment(line: str) -> bool:
    return FRAGMENT.match(line) is not None


def riddles_in(text: str) -> list[str]:
    """Return the riddles of a text, each with what it should say instead."""
    found = ((riddle.search(text), better) for riddle, better in RIDDLES.items())
    return [f"“{match[0]}”: better {better}" for match, better in found if match]


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
        f"{path.relative_to(ROOT)}:{line}: {docstring.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if MAYBE_A_FRAGMENT.search(text := path.read_text(encoding="utf-8"))
        for line, docstring in docstrings(text)
        if opens_with_a_fragment(docstring)
    ]
    assert fragments == []


def test_the_source_speaks_no_riddles() -> None:
    riddles = [
        f"{path.relative_to(ROOT)}:{line}: {riddle}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        if riddles_in(text := path.read_text(encoding="utf-8"))
        for line, prose in (*docstrings(text), *comments(text))
        for riddle in riddles_in(prose)
    ]
    assert riddles == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_loop_variables_are_named_for_what_they_hold(folder: str) -> None:
    nameless = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in loop_variables(path)
        if name == "one"
    ]
    assert nameless == []


@pytest.mark.parametrize("line", ["Unless it is stopped.", "Of every module.", "Whether a worker lives."])
def test_fragments_are_recognized(line: str) -> None:
    assert opens_with_a_fragment(line)


@pytest.mark.parametrize("line", ["Return `[]` for an unknown job.", "When full, wait.", "`True` if set."])
def test_sentences_are_accepted(line: str) -> None:
    assert not opens_with_a_fragment(line)


@pytest.mark.parametrize(
    "prose",
    [
        "The job was put down.",
        "The jobs that it\nhands back.",
        "Models give\nway to others.",
        "An engine waits for company.",
        "The weights are cut over ranks.",
        "Predict the memory. Of a clip that is a chunk.",
    ],
)
def test_riddles_are_recognized(prose: str) -> None:
    assert len(riddles_in(prose)) == 1


@pytest.mark.parametrize("prose", ["The body is cut off.", "`company` counts tokens.", "The end of a clip."])
def test_plain_prose_is_accepted(prose: str) -> None:
    assert riddles_in(prose) == []

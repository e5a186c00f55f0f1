"""Every message that the troubleshooting page explains is one that the code has."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| (?P<mark>`+) ?(?P<message>.+?) ?(?P=mark) \| ", re.MULTILINE)
MESSAGES = [row["message"] for row in ROW.finditer(PAGE.read_text("utf-8"))]
PLACEHOLDER = re.compile(r"%(\.\d)?[sdrf]")


@cache
def templates() -> str:
    """Return all texts of the source, with an ellipsis for each value that is filled in."""
    trees = (ast.parse(path.read_text("utf-8")) for path in (ROOT / "src").rglob("*.py"))
    return "\n".join(text for tree in trees for text in texts(tree))


def texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield PLACEHOLDER.sub("…", node.value)


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 30


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_has_the_message(message: str) -> None:
    assert message in templates()

"""A class's name stands for one thing: nobody has to ask which of two is meant."""

import ast
from collections import defaultdict
from pathlib import Path

import diffuserve


def test_no_public_class_name_is_defined_in_two_modules() -> None:
    modules = defaultdict(set)
    for path in Path(diffuserve.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(str(path))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}

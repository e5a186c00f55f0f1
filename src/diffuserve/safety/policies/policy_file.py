"""Policies as YAML files. Errors name the file, the place in it, the value and the remedy."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action
from diffuserve.safety.policies.folding import fold_pattern, fold_term
from diffuserve.safety.policies.patterns import compile_pattern
from diffuserve.safety.policies.policy import MINORS, Category, Override, Policy, WordList

DEFAULT_POLICY = Path(__file__).with_name("default_policy.yaml")
OTHER_LANGUAGES = Path(__file__).with_name("other_languages.yaml")
"""Word lists in other languages than English, and their rules, which the shipped policy includes."""
VERSION = 1
MAX_TERM_CHARACTERS = 100

_ACTIONS = {str(action): action for action in (Action.ALLOW, Action.FLAG, Action.BLOCK)}
_UNREADABLE = {"allow": Action.ALLOW, "flag": Action.FLAG, "refuse": Action.BLOCK}
_WORD_KEYS = ("terms", "patterns", "stems", "fragments")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def load_policy(path: Path | None = None) -> Policy:
    """Read a policy file, by default the shipped one. Raise `InvalidParams` if it is invalid."""
    if path is None:
        return _policy_of(_shipped(), DEFAULT_POLICY.name)
    return parse_policy(_read(path), path.name)


def parse_policy(text: str, file: str = "policy") -> Policy:
    """Parse a policy. `file` is its name in errors. Raise `InvalidParams` if it is invalid."""
    document = _parse(text, file)
    return _policy_of(_extend(document, file) if "extends" in document else document, file)


def _policy_of(document: dict[str, Any], file: str) -> Policy:
    top = _Node(file, "", document)
    top.check_keys("version", "extends", "name", "revision", "unreadable", "lists", "categories", "tenants")
    if document.get("version") != VERSION:
        raise top.at("version").error(f"write version: {VERSION}")
    lists = {node.name: _word_list(node) for node in top.at("lists").children()}
    for name in lists.keys() & top.at("categories").mapping().keys():
        raise top.at("lists").at(name).error("a category has this name too; rename the list")
    named = [*lists, *top.at("categories").mapping()]
    categories = {node.name: _category(node, named) for node in top.at("categories").children()}
    _require_minors(top, categories)
    tenants = {node.key: _overrides(node, categories) for node in top.at("tenants").children()}
    return Policy(
        name=top.at("name").text(),
        revision=top.at("revision").text(),
        categories=categories,
        lists=lists,
        tenants=tenants,
        unreadable=_unreadable(top.at("unreadable")),
    )


def _unreadable(node: "_Node") -> Action:
    if node.value is None:
        return Action.FLAG
    if not isinstance(node.value, str) or node.value not in _UNREADABLE:
        raise node.error(f"must be one of {', '.join(_UNREADABLE)}")
    return _UNREADABLE[node.value]


def _require_minors(top: "_Node", categories: Mapping[str, Category]) -> None:
    node = top.at("categories").at(MINORS)
    minors = categories.get(MINORS)
    if minors is None:
        raise node.error(
            "every policy needs this category; take it from the shipped one with extends: default"
        )
    if minors.action is not Action.BLOCK:
        raise node.at("action").error("this category always blocks; write action: block")
    if not (minors.combinations or minors.words):
        raise node.error("has no rule; take its combinations from the shipped policy with extends: default")


def _category(node: "_Node", named: Sequence[str]) -> Category:
    node.check_keys("action", "threshold", *_WORD_KEYS, "combinations", "exceptions")
    return Category(
        name=node.name,
        action=node.at("action").action(),
        words=_words(node),
        combinations=tuple(_combination(item, named) for item in node.at("combinations").items()),
        exceptions=_word_list(node.at("exceptions")),
        threshold=node.at("threshold").threshold(),
    )


def _combination(node: "_Node", named: Sequence[str]) -> tuple[str, ...]:
    names = tuple(item.text() for item in node.items())
    if len(names) < 2:
        raise node.error("name two word lists or more; for one, write its words as terms")
    for item in node.items():
        if not _is_named(item.text(), named):
            raise item.error(f"no such word list or category; there are {', '.join(named)}")
    return names


def _is_named(wanted: str, named: Sequence[str]) -> bool:
    if not wanted.endswith("*"):
        return wanted in named
    return any(name.startswith(wanted[:-1]) for name in named)


def _word_list(node: "_Node") -> WordList:
    """Parse a word list: either a list of terms, or a mapping with terms, stems, fragments and patterns."""
    if isinstance(node.value, list) or node.value is None:
        return WordList(node.terms())
    node.check_keys(*_WORD_KEYS)
    return _words(node)


def _words(node: "_Node") -> WordList:
    return WordList(
        terms=node.at("terms").terms(),
        patterns=node.at("patterns").patterns(),
        stems=tuple(item.stem() for item in node.at("stems").items()),
        fragments=tuple(item.term() for item in node.at("fragments").items()),
    )


def _overrides(node: "_Node", categories: Mapping[str, Category]) -> dict[str, Override]:
    return {child.key: _override(child, categories) for child in node.children()}


def _override(node: "_Node", categories: Mapping[str, Category]) -> Override:
    category = categories.get(node.key)
    if category is None:
        raise node.error(f"no such category; there are {', '.join(categories)}")
    node.check_keys("action", "threshold")
    action = node.at("action").action() if "action" in node.mapping() else None
    override = Override(action, node.at("threshold").threshold())
    if category.name == MINORS:
        _refuse_to_loosen(node, override, category)
    return override


def _refuse_to_loosen(node: "_Node", override: Override, category: Category) -> None:
    if override.action not in (None, Action.BLOCK):
        raise node.at("action").error("no tenant can loosen this category; leave it out")
    if override.threshold is not None and override.threshold > (category.threshold or 0.0):
        raise node.at("threshold").error(
            "no tenant can loosen this category; give a lower score, or leave it out"
        )


@dataclass(frozen=True)
class _Node:
    """A value in a file, and the path to it."""

    file: str
    path: str
    value: Any
    key: str = ""

    @property
    def name(self) -> str:
        if not _NAME.fullmatch(self.key):
            raise self.error("a name is lower-case letters, digits and _, and begins with a letter")
        return self.key

    def error(self, remedy: str) -> InvalidParams:
        return InvalidParams(f"{self.file}: {self.path}" if self.path else self.file, self.value, remedy)

    def at(self, key: str) -> "_Node":
        return _Node(self.file, f"{self.path}.{key}" if self.path else key, self.mapping().get(key), key)

    def mapping(self) -> dict[str, Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.error("must be a mapping of names")
        return self.value

    def children(self) -> list["_Node"]:
        return [self.at(key) for key in self.mapping()]

    def check_keys(self, *keys: str) -> None:
        for key in self.mapping():
            if key not in keys:
                raise self.at(key).error(f"no such key; there are {', '.join(keys)}")

    def items(self) -> list["_Node"]:
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.error("must be a list")
        return [_Node(self.file, f"{self.path}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.error("must be text; put it in quotes")
        return self.value

    def action(self) -> Action:
        if not isinstance(self.value, str) or self.value not in _ACTIONS:
            raise self.error(f"must be one of {', '.join(_ACTIONS)}")
        return _ACTIONS[self.value]

    def threshold(self) -> float | None:
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not 0 < self.value <= 1:
            raise self.error("must be a score above 0 and at most 1")
        return float(self.value)

    def terms(self) -> tuple[str, ...]:
        return tuple(item.term() for item in self.items())

    def term(self) -> str:
        term = self.text()
        if len(term) > MAX_TERM_CHARACTERS:
            raise self.error(f"a term has at most {MAX_TERM_CHARACTERS} characters")
        if not fold_term(term).plain:
            raise self.error("a term needs letters or digits")
        return term

    def stem(self) -> str:
        if len(fold_term(self.term()).plain) > 1:
            raise self.error("a stem is the beginning of one word; write a phrase as a term")
        return self.text()

    def patterns(self) -> tuple[str, ...]:
        return tuple(item.pattern() for item in self.items())

    def pattern(self) -> str:
        pattern = fold_pattern(self.text())
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise self.error(str(error)) from error
        return pattern


# libyaml's loader, if the wheel has it, is ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """A YAML loader that raises an error for a duplicate key instead of using the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value!r} stands twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParams(f"policy {path}", path.name, f"cannot be read: {error}") from error


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        document = yaml.load(text, _StrictLoader)  # noqa: S506 (a safe loader, made stricter)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidParams(file, text[:40], f"is not YAML: {error}") from error
    return _Node(file, "", document).mapping()


def _extend(document: dict[str, Any], file: str) -> dict[str, Any]:
    if document["extends"] != "default":
        raise _Node(file, "extends", document["extends"]).error(
            "only the shipped policy can be extended: default"
        )
    return _merge(_shipped(), document)


def _shipped() -> dict[str, Any]:
    """Return the document of the shipped policy, which is spread over two files."""
    parts = [_parse(_read(path), path.name) for path in (OTHER_LANGUAGES, DEFAULT_POLICY)]
    return _merge(*parts)


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `own`, merged key by key where both have mappings."""
    merged = dict(base)
    for key, value in own.items():
        are_mappings = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if are_mappings else value
    return merged

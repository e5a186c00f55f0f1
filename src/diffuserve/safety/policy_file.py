"""Policies as YAML files. Whatever is wrong in one is said with its file, place, value and remedy."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action
from diffuserve.safety.folding import fold
from diffuserve.safety.patterns import compile_pattern
from diffuserve.safety.policy import MINORS, Category, Override, Policy, WordList

DEFAULT_POLICY = Path(__file__).with_name("default_policy.yaml")
VERSION = 1
MAX_TERM_CHARACTERS = 100

_ACTIONS = {str(action): action for action in (Action.ALLOW, Action.FLAG, Action.BLOCK)}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def load_policy(path: Path | None = None) -> Policy:
    """The shipped policy where no path is given. Raises `InvalidParams`."""
    path = path or DEFAULT_POLICY
    return parse_policy(_read(path), path.name)


def parse_policy(text: str, file: str = "policy") -> Policy:
    """`file` is what errors call it. Raises `InvalidParams`."""
    document = _parse(text, file)
    if "extends" in document:
        document = _extend(document, file)
    top = _Place(file, "", document)
    top.known("version", "extends", "name", "revision", "lists", "categories", "tenants")
    if document.get("version") != VERSION:
        raise top.at("version").wrong(f"write version: {VERSION}")
    lists = {place.name: _word_list(place) for place in top.at("lists").children()}
    for name in lists.keys() & top.at("categories").mapping().keys():
        raise top.at("lists").at(name).wrong("a category has this name too; rename the list")
    named = [*lists, *top.at("categories").mapping()]
    categories = {place.name: _category(place, named) for place in top.at("categories").children()}
    _require_minors(top, categories)
    tenants = {place.key: _overrides(place, categories) for place in top.at("tenants").children()}
    return Policy(top.at("name").text(), top.at("revision").text(), categories, lists, tenants)


def _require_minors(top: "_Place", categories: Mapping[str, Category]) -> None:
    place = top.at("categories").at(MINORS)
    minors = categories.get(MINORS)
    if minors is None:
        raise place.wrong(
            "every policy needs this category; take it from the shipped one with extends: default"
        )
    if minors.action is not Action.BLOCK:
        raise place.at("action").wrong("this category always blocks; write action: block")
    if not (minors.combinations or minors.words.terms or minors.words.patterns):
        raise place.wrong("has no rule; take its combinations from the shipped policy with extends: default")


def _category(place: "_Place", named: Sequence[str]) -> Category:
    place.known("action", "threshold", "terms", "patterns", "combinations", "exceptions")
    return Category(
        name=place.name,
        action=place.at("action").action(),
        words=WordList(place.at("terms").terms(), place.at("patterns").patterns()),
        combinations=tuple(_combination(one, named) for one in place.at("combinations").items()),
        exceptions=_word_list(place.at("exceptions")),
        threshold=place.at("threshold").threshold(),
    )


def _combination(place: "_Place", named: Sequence[str]) -> tuple[str, ...]:
    names = tuple(one.text() for one in place.items())
    if len(names) < 2:
        raise place.wrong("name two word lists or more; for one, write its words as terms")
    for one in place.items():
        if one.text() not in named:
            raise one.wrong(f"no such word list or category; there are {', '.join(named)}")
    return names


def _word_list(place: "_Place") -> WordList:
    """Either terms alone or a mapping with terms and patterns."""
    if isinstance(place.value, list) or place.value is None:
        return WordList(place.terms())
    place.known("terms", "patterns")
    return WordList(place.at("terms").terms(), place.at("patterns").patterns())


def _overrides(place: "_Place", categories: Mapping[str, Category]) -> dict[str, Override]:
    return {one.key: _override(one, categories) for one in place.children()}


def _override(place: "_Place", categories: Mapping[str, Category]) -> Override:
    category = categories.get(place.key)
    if category is None:
        raise place.wrong(f"no such category; there are {', '.join(categories)}")
    place.known("action", "threshold")
    action = place.at("action").action() if "action" in place.mapping() else None
    override = Override(action, place.at("threshold").threshold())
    if category.name == MINORS:
        _refuse_to_loosen(place, override, category)
    return override


def _refuse_to_loosen(place: "_Place", override: Override, category: Category) -> None:
    if override.action not in (None, Action.BLOCK):
        raise place.at("action").wrong("no tenant can loosen this category; leave it out")
    if override.threshold is not None and override.threshold > (category.threshold or 0.0):
        raise place.at("threshold").wrong(
            "no tenant can loosen this category; give a lower score, or leave it out"
        )


@dataclass(frozen=True)
class _Place:
    """A value in the file, and the way to it."""

    file: str
    path: str
    value: Any
    key: str = ""

    @property
    def name(self) -> str:
        if not _NAME.fullmatch(self.key):
            raise self.wrong("a name is lower-case letters, digits and _, and begins with a letter")
        return self.key

    def wrong(self, remedy: str) -> InvalidParams:
        return InvalidParams(f"{self.file}: {self.path}" if self.path else self.file, self.value, remedy)

    def at(self, key: str) -> "_Place":
        return _Place(self.file, f"{self.path}.{key}" if self.path else key, self.mapping().get(key), key)

    def mapping(self) -> dict[str, Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.wrong("must be a mapping of names")
        return self.value

    def children(self) -> list["_Place"]:
        return [self.at(key) for key in self.mapping()]

    def known(self, *keys: str) -> None:
        for key in self.mapping():
            if key not in keys:
                raise self.at(key).wrong(f"no such key; there are {', '.join(keys)}")

    def items(self) -> list["_Place"]:
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.wrong("must be a list")
        return [_Place(self.file, f"{self.path}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong("must be text; put it in quotes")
        return self.value

    def action(self) -> Action:
        if not isinstance(self.value, str) or self.value not in _ACTIONS:
            raise self.wrong(f"must be one of {', '.join(_ACTIONS)}")
        return _ACTIONS[self.value]

    def threshold(self) -> float | None:
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not 0 < self.value <= 1:
            raise self.wrong("must be a score above 0 and at most 1")
        return float(self.value)

    def terms(self) -> tuple[str, ...]:
        return tuple(one.term() for one in self.items())

    def term(self) -> str:
        term = self.text()
        if len(term) > MAX_TERM_CHARACTERS:
            raise self.wrong(f"a term has at most {MAX_TERM_CHARACTERS} characters")
        if not fold(term).plain:
            raise self.wrong("a term needs letters or digits")
        return term

    def patterns(self) -> tuple[str, ...]:
        return tuple(one.pattern() for one in self.items())

    def pattern(self) -> str:
        try:
            compile_pattern(self.text())
        except InvalidParams:
            raise
        except ValueError as error:
            raise self.wrong(str(error)) from error
        return self.text()


# libyaml's, where the wheel has it, reads a policy ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """Refuses a key that is written twice, of which YAML would silently take the last."""

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
        document = yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidParams(file, text[:40], f"is not YAML that can be read: {error}") from error
    return _Place(file, "", document).mapping()


def _extend(document: dict[str, Any], file: str) -> dict[str, Any]:
    if document["extends"] != "default":
        raise _Place(file, "extends", document["extends"]).wrong(
            "only the shipped policy can be extended: default"
        )
    return _merged(_parse(_read(DEFAULT_POLICY), DEFAULT_POLICY.name), document)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Key by key where both have mappings; else what is in the file itself holds."""
    merged = dict(base)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged

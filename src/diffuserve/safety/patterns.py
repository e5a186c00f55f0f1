"""Regular expressions that people write into a policy, and what the worst text can make them cost."""

import re
from re import _constants, _parser  # the only parser that agrees with `re`
from typing import Any

MAX_PATTERN_CHARACTERS = 500
MAX_WAYS = 1_000

_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """To be searched in folded text, which is lower-case.

    `re` has no time limit, so the ways in which a pattern can read a text from one place are bounded here:
    repeats need an upper bound, and the product of their ranges is at most `MAX_WAYS`. Raises `ValueError`
    saying what to write instead.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"is longer than {MAX_PATTERN_CHARACTERS} characters; split it")
    try:
        compiled = re.compile(pattern)
        ways = _ways(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if compiled.search(""):
        raise ValueError("also matches nothing at all; name a letter that must be there")
    if ways > MAX_WAYS:
        raise ValueError(f"can read a text in more than {MAX_WAYS} ways; repeat less, or a single character")
    return compiled


def _ways(parsed: Any) -> int:
    """In how many ways it can match from one place, at most."""
    total = 1
    for operator, argument in parsed:
        total = min(total * _ways_of(operator, argument), MAX_WAYS + 1)
    return total


def _ways_of(operator: Any, argument: Any) -> int:
    if operator in _REPEATS:
        return _ways_to_repeat(*argument)
    if operator is _constants.BRANCH:
        return _ways_to_branch(argument[1])
    if operator is _constants.LITERAL and chr(argument).isupper():
        raise ValueError(f"holds {chr(argument)!r}, and folded text has no capitals; write it in lower case")
    if operator is _constants.GROUPREF_EXISTS:
        raise ValueError("asks whether a group matched; write two patterns")
    groups = [part for part in _parts(argument) if isinstance(part, _parser.SubPattern)]
    return sum(_ways(group) for group in groups) or 1


def _ways_to_branch(branches: Any) -> int:
    """Of branches that begin with different letters only one goes on."""
    by_letter: dict[int, int] = {}
    loose = 0
    for branch in branches:
        if len(branch) and branch[0][0] is _constants.LITERAL:
            letter: int = branch[0][1]
            by_letter[letter] = by_letter.get(letter, 0) + _ways(branch)
        else:
            loose += _ways(branch)
    return loose + max(by_letter.values(), default=0)


def _ways_to_repeat(least: int, most: Any, body: Any) -> int:
    if most is _constants.MAXREPEAT:
        raise ValueError("repeats without bound; write {0,20} for *, {1,20} for +")
    each = _ways(body)
    if each == 1:
        return int(most) - least + 1
    # The powers grow past the limit at once, so that the rest need not be added.
    return sum(
        each ** min(count, MAX_WAYS.bit_length()) for count in range(least, min(int(most), MAX_WAYS) + 1)
    )


def _parts(argument: Any) -> tuple[Any, ...]:
    if isinstance(argument, _parser.SubPattern):
        return (argument,)
    return argument if isinstance(argument, tuple) else ()

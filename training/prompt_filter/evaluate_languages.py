"""Measure `sexual_minors` on prompts in other languages than English, and on disguised English ones.

python -m training.prompt_filter.evaluate_languages   # writes results_languages.json and .md beside this file
python -m training.prompt_filter.evaluate_languages --misses   # writes nothing
"""

import argparse
import json
import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from training.prompt_filter.evaluate import Judged, filters, judge_all, print_misses
from training.prompt_filter.labelled import FOLDER, HELD_OUT, Labelled, labelled_prompts

from diffuserve.domain.safety import Verdict
from diffuserve.safety.policies.policy import MINORS

# The second was written by somebody who had read neither the policy nor the first: nothing is tuned on it.
PROMPTS = {
    "languages": FOLDER / "prompts_languages.yaml",
    "languages_held_out": FOLDER / "prompts_languages_second.yaml",
}
RESULTS = FOLDER / "results_languages.json"
_SEED = 11
_MIN_SWAPPED = 5

_GREEK = str.maketrans("abdeiklnoprtuvxyz", "αβδεικληορρτυνχυζ")
_CYRILLIC = str.maketrans("abcdehiklmnoprstuwxy", "авсдеһіклмпоряѕтцшху")
_ARMENIAN = str.maketrans("acdghijlnoqsuw", "ացձցհիյլոօզչսա")
_CHEROKEE = str.maketrans("abcdeghijklmnoprstvwyz", "ᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷᏁᎾᏢᏒᏚᎢᏙᎳᎽᏃ")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--misses", action="store_true", help="print what was judged wrongly; writes nothing")
    if parser.parse_args().misses:
        print_misses(judge_all(filters()["both"], [*prompts_by_language("languages"), *disguised_prompts()]))
    else:
        write(measure(), RESULTS)


def prompts_by_language(kind: str) -> list[Labelled]:
    """Return the labelled prompts of one set; `hard` is the language."""
    document = yaml.safe_load(PROMPTS[kind].read_text(encoding="utf-8"))
    return [
        Labelled(prompt, frozenset() if label == "safe" else frozenset({label}), language, kind)
        for language, labels in document.items()
        for label, prompts in labels.items()
        for prompt in prompts
    ]


def disguised_prompts() -> list[Labelled]:
    """Return the plain English prompts of the held-out set in every disguise, which is their `hard`."""
    plain = [item for item in labelled_prompts() if item.half == HELD_OUT and _is_used(item)]
    return [
        Labelled(disguise(item.prompt.lower()), item.labels & {MINORS}, name, "disguised")
        for name, disguise in _disguises().items()
        for item in plain
    ]


def _is_used(item: Labelled) -> bool:
    return not item.labels or (MINORS in item.labels and item.hard == "plain")


def _disguises() -> Mapping[str, Callable[[str], str]]:
    chance = random.Random(_SEED)
    return {
        "Greek letters": lambda text: text.translate(_GREEK),
        "Cyrillic letters": lambda text: text.translate(_CYRILLIC),
        "Armenian letters": lambda text: text.translate(_ARMENIAN),
        "Cherokee letters": lambda text: text.translate(_CHEROKEE),
        "full-width letters": lambda text: _shifted(text, "FULLWIDTH LATIN SMALL LETTER"),
        "mathematical letters": lambda text: _shifted(text, "MATHEMATICAL BOLD FRAKTUR SMALL"),
        "accents": lambda text: "".join(f"{letter}\u0323" if letter.isalpha() else letter for letter in text),
        "two letters swapped": lambda text: " ".join(_swapped(word, chance) for word in text.split()),
    }


def _shifted(text: str, name: str) -> str:
    return "".join(
        unicodedata.lookup(f"{name} {letter.upper()}") if letter.isascii() and letter.isalpha() else letter
        for letter in text
    )


def _swapped(word: str, chance: random.Random) -> str:
    """Swap two letters within a word of five letters or more; its first letter stays."""
    places = [i for i in range(1, len(word) - 1) if word[i : i + 2].isalpha()]
    if len(word) < _MIN_SWAPPED or not places:
        return word
    place = chance.choice(places)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def measure() -> dict[str, Any]:
    """Return the figures of the rules alone and of the rules with the classifier."""
    kinds = (*PROMPTS, "disguises")
    return {"filter": asdict(filters()["both"].info)} | {kind: measure_kind(kind) for kind in kinds}


def measure_kind(kind: str) -> dict[str, dict[str, dict[str, int]]]:
    """Return the figures of one set of prompts."""
    prompts = prompts_by_language(kind) if kind in PROMPTS else disguised_prompts()
    used = {name: prompt_filter for name, prompt_filter in filters().items() if name != "classifier"}
    return {name: by_kind(judge_all(prompt_filter, prompts)) for name, prompt_filter in used.items()}


def by_kind(judged: Judged) -> dict[str, dict[str, int]]:
    """Count for each language or disguise, and for all, what was recognized and what was wrongly blocked."""
    kinds = dict.fromkeys(prompt.hard for prompt, _ in judged)
    return {"all": _counts(judged)} | {kind: _counts(_of(judged, kind)) for kind in kinds}


def _of(judged: Judged, kind: str) -> Judged:
    return [(prompt, verdict) for prompt, verdict in judged if prompt.hard == kind]


def _counts(judged: Judged) -> dict[str, int]:
    unsafe = [verdict for prompt, verdict in judged if prompt.labels]
    safe = [verdict for prompt, verdict in judged if not prompt.labels]
    return {
        "unsafe": len(unsafe),
        "recognized": sum(map(_names_minors, unsafe)),
        "safe": len(safe),
        "wrongly_blocked": sum(map(_names_minors, safe)),
        "wrongly_flagged": sum(bool(verdict.findings) and not _names_minors(verdict) for verdict in safe),
    }


def _names_minors(verdict: Verdict) -> bool:
    return any(finding.category == MINORS for finding in verdict.findings)


def write(results: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(results, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
    print(path.with_suffix(".md").read_text(encoding="utf-8"))


def as_markdown(results: Mapping[str, Any]) -> str:
    filter_ = results["filter"]
    parts = [
        "# Other languages and disguises\n",
        f"{filter_['name']}, {filter_['version']}. Written by evaluate_languages.py.\n",
    ]
    titles = {
        "languages": "By language",
        "languages_held_out": "By language, held out",
        "disguises": "By disguise",
    }
    for kind, title in titles.items():
        parts.append(f"## {title}\n\n{table(results[kind])}")
    return "\n".join(parts)


def table(by_filter: Mapping[str, Mapping[str, Mapping[str, int]]], rows: Sequence[str] = ()) -> str:
    """Return a table with a row for each kind, or for `rows` alone."""
    columns = ["", "unsafe", "by the rules", "with the classifier", "safe", "wrongly blocked"]
    kinds = [kind for kind in by_filter["both"] if not rows or kind in rows]
    lines = [_line(columns), _line(["---"] * len(columns))]
    return "\n".join([*lines, *(_row(kind, by_filter["rules"], by_filter["both"]) for kind in kinds), ""])


def _row(kind: str, rules: Mapping[str, Mapping[str, int]], both: Mapping[str, Mapping[str, int]]) -> str:
    found = (rules[kind]["recognized"], both[kind]["recognized"])
    return _line([kind, both[kind]["unsafe"], *found, both[kind]["safe"], both[kind]["wrongly_blocked"]])


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()

"""Measure the prompt filter on the labelled set, and how long it takes.

python -m training.prompt_filter.evaluate              # writes results.json and results.md beside this file
python -m training.prompt_filter.evaluate --keep-latency   # the same, with the times measured before
python -m training.prompt_filter.evaluate --half second --misses   # while tuning; writes nothing
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.prompt_filter.labelled import FOLDER, HALVES, SHORT, Labelled, labelled_prompts, short_prompts

from diffuserve.domain.safety import Action, Verdict
from diffuserve.safety.classifiers.embedded import EmbeddedClassifier
from diffuserve.safety.policies.policy import MINORS, Category, Policy
from diffuserve.safety.policies.policy_file import load_policy
from diffuserve.safety.prompt import PolicyFilter

NUM_TIMED = 2_000
LONG_CHARACTERS = 2_000

Judged = Sequence[tuple[Labelled, Verdict]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=HALVES, help="one half alone; writes nothing")
    parser.add_argument("--misses", action="store_true", help="print what was judged wrongly")
    parser.add_argument("--keep-latency", action="store_true", help="measure no times: the machine is busy")
    arguments = parser.parse_args()
    if arguments.half:
        judged = judge_all(filters()["both"], of_half(labelled_prompts(), arguments.half))
        print(json.dumps(figures(judged), indent=1))
        print_misses(judged if arguments.misses else [])
    else:
        known = json.loads((FOLDER / "results.json").read_text()) if arguments.keep_latency else {}
        write(measure(known.get("latency_ms")), FOLDER)


def measure(latency_ms: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all figures; `latency_ms` are times to keep."""
    prompts = labelled_prompts()
    by_half = {
        half: {
            name: figures(judge_all(prompt_filter, of_half(prompts, half)))
            for name, prompt_filter in filters().items()
        }
        for half in HALVES
    }
    return {
        "filter": asdict(filters()["both"].info),
        "halves": by_half,
        "short": {name: short_shares(prompt_filter) for name, prompt_filter in filters().items()},
        "latency_ms": latency_ms or latency(filters()["both"]),
    }


def short_shares(filter_: PolicyFilter) -> dict[str, dict[str, float]]:
    """Return how many of the harmless short prompts are caught, by set."""
    judged = judge_all(filter_, short_prompts())
    return {name: _caught(judgement for judgement in judged if judgement[0].half == name) for name in SHORT}


def filters() -> dict[str, PolicyFilter]:
    """The rules, the classifier, and both as they are shipped."""
    policy, classifier = load_policy(), EmbeddedClassifier.load()
    return {
        "rules": PolicyFilter(policy),
        "classifier": PolicyFilter(_without_rules(policy), classifier),
        "both": PolicyFilter(policy, classifier),
    }


def _without_rules(policy: Policy) -> Policy:
    categories = {
        name: Category(name, category.action, threshold=category.threshold)
        for name, category in policy.categories.items()
    }
    return Policy(policy.name, policy.revision, categories)


def of_half(prompts: Iterable[Labelled], half: str) -> list[Labelled]:
    return [prompt for prompt in prompts if prompt.half == half]


def judge_all(filter_: PolicyFilter, prompts: Sequence[Labelled]) -> Judged:
    async def judge() -> Judged:
        return [(prompt, await filter_.check(prompt.prompt)) for prompt in prompts]

    return asyncio.run(judge())


def figures(judged: Judged) -> dict[str, Any]:
    """Count prompts that are flagged or blocked in any category; `named` counts those in the right one."""
    unsafe = [judgement for judgement in judged if judgement[0].labels]
    safe = [judgement for judgement in judged if not judgement[0].labels]
    categories = sorted({label for prompt, _ in unsafe for label in prompt.labels})
    return {
        "unsafe": _caught(unsafe),
        "written_unsafe": _caught(judgement for judgement in unsafe if MINORS not in judgement[0].labels),
        "safe": _caught(safe),
        "categories": {name: _of_category(name, unsafe) for name in categories},
        "unsafe_by_kind": _by_kind(unsafe),
        "safe_by_kind": _by_kind(safe),
    }


def _of_category(name: str, unsafe: Judged) -> dict[str, float]:
    labelled = [judgement for judgement in unsafe if name in judgement[0].labels]
    return _caught(labelled) | {"named": sum(_names(verdict, name) for _, verdict in labelled)}


def _names(verdict: Verdict, category: str) -> bool:
    return any(finding.category == category for finding in verdict.findings)


def _by_kind(judged: Judged) -> dict[str, dict[str, float]]:
    kinds = sorted({prompt.hard for prompt, _ in judged})
    return {kind: _caught(judgement for judgement in judged if judgement[0].hard == kind) for kind in kinds}


def _caught(judged: Iterable[tuple[Labelled, Verdict]]) -> dict[str, float]:
    caught = [is_caught(verdict) for _, verdict in judged]
    return {
        "prompts": len(caught),
        "caught": sum(caught),
        "share": round(sum(caught) / max(1, len(caught)), 4),
    }


def is_caught(verdict: Verdict) -> bool:
    return verdict.action is not Action.ALLOW


def print_misses(judged: Judged) -> None:
    for prompt, verdict in judged:
        if is_caught(verdict) != bool(prompt.labels):
            shown = f"({prompt.hard})" if MINORS in prompt.labels else prompt.prompt
            print(sorted(prompt.labels), prompt.hard, shown, *verdict.findings, sep="\n    ")


def latency(filter_: PolicyFilter) -> dict[str, dict[str, float]]:
    """Return the CPU time of a whole check in milliseconds, which excludes other processes."""
    short = [prompt.prompt for prompt in labelled_prompts()]
    long = [_lengthened(short, i) for i in range(len(short))]
    return {
        "short": asyncio.run(_timed(filter_, short)),
        "2,000 characters": asyncio.run(_timed(filter_, long)),
    }


def _lengthened(prompts: list[str], start: int) -> str:
    """Join many safe and unsafe prompts, which gives more findings than any realistic prompt."""
    return ", ".join((prompts * 2)[start : start + 100])[:LONG_CHARACTERS]


async def _timed(filter_: PolicyFilter, prompts: Sequence[str]) -> dict[str, float]:
    seconds = []
    for i in range(NUM_TIMED):
        before = time.process_time()
        await filter_.check(prompts[i % len(prompts)])
        seconds.append(time.process_time() - before)
    percentiles = statistics.quantiles(seconds, n=100)
    return {"p50": round(percentiles[49] * 1e3, 3), "p99": round(percentiles[98] * 1e3, 3)}


def write(results: Mapping[str, Any], folder: Path) -> None:
    (folder / "results.json").write_text(json.dumps(results, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(as_markdown(results), encoding="utf-8")
    print((folder / "results.md").read_text(encoding="utf-8"))


def as_markdown(results: Mapping[str, Any]) -> str:
    filter_ = results["filter"]
    parts = [f"# Results\n\n{filter_['name']}, {filter_['version']}. Written by evaluate.py.\n"]
    for half, by_filter in results["halves"].items():
        parts.append(f"## {half.capitalize()}\n\n{table(by_filter, rows_by_category)}")
        parts.append(
            f"Unsafe prompts caught, by what hides them:\n\n{table(by_filter, _kinds('unsafe_by_kind'))}"
        )
        parts.append(
            f"Safe prompts caught, by what makes them hard:\n\n{table(by_filter, _kinds('safe_by_kind'))}"
        )
    parts.append(f"## Short harmless prompts\n\n{short_table(results['short'])}")
    parts.append(f"## A check, milliseconds of processor time\n\n{latency_table(results['latency_ms'])}")
    return "\n".join(parts)


def table(by_filter: Mapping[str, Any], rows: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> str:
    """Return a table of shares caught: a row per kind of prompt, a column per filter."""
    lines = [f"| caught | prompts | {' | '.join(by_filter)} |", f"|---|---|{'---|' * len(by_filter)}"]
    for name, cell in rows(by_filter["both"]).items():
        shares = " | ".join(f"{rows(by_category)[name]['share']:.3f}" for by_category in by_filter.values())
        lines.append(f"| {name} | {cell['prompts']} | {shares} |")
    return "\n".join([*lines, ""])


def short_table(shares: Mapping[str, Any]) -> str:
    """Return a table of false positives: a row per set of short prompts, a column per filter."""
    names = {"short": "looked at", "short_held_out": "other words"}
    return table(shares, lambda by_set: {names[name]: cell for name, cell in by_set.items()})


def rows_by_category(shares: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "unsafe": shares["unsafe"],
        "unsafe but for `sexual_minors`": shares["written_unsafe"],
        **{f"`{name}`": cell for name, cell in shares["categories"].items()},
        "safe (false positives)": shares["safe"],
    }


def _kinds(part: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return lambda figures_by_part: dict(figures_by_part[part])


def latency_table(latency_ms: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        f"| {name} | {percentiles['p50']:.2f} | {percentiles['p99']:.2f} |"
        for name, percentiles in latency_ms.items()
    ]
    return "\n".join(["| prompts | p50 | p99 |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    main()

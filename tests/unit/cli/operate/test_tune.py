"""What `diffuserve tune` refuses before anything is loaded, and how it says what won."""

from pathlib import Path

import pytest

from diffuserve.cli.operate.tune import reason_of
from diffuserve.tuning.kept import DEFAULTS, TriedOptions, TunedOptions, Tuning
from support.command import Invoke

FOUR = TunedOptions(max_batch_size=4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--workload", "chat-app"), "give the objective"),
        (("--slo", "soon"), "is not an objective"),
        (("--slo", "p95<2s", "--budget", "2"), "must be a time"),
        (("--slo", "p95<2s", "--workload", "none"), "is neither a file nor one of"),
        (("--show",), "nothing is kept"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
    tmp_path: Path,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setenv("DIFFUSERVE_CACHE_DIR", str(tmp_path))
    outcome = invoke("tune", *arguments)
    assert outcome.code == 2
    assert told in outcome.err


@pytest.mark.parametrize(
    ("options", "usual", "told"),
    [
        (DEFAULTS, 3.0, "the defaults: p95<2s of studio is kept up to 3 requests a second. Nothing"),
        (FOUR, 2.0, "--max-batch-size 4: p95<2s of studio is kept up to 3 requests a second, 1.50 times"),
        (FOUR, None, "with the defaults at no rate that was tried"),
    ],
)
def test_the_reason_compares_the_winner_with_the_defaults(
    options: TunedOptions, usual: float | None, told: str
) -> None:
    tried = {DEFAULTS: usual, options: 3.0}
    tuning = Tuning(
        model="tiny-flux",
        slo="p95<2s",
        workload="studio",
        options=options,
        cost_fit="fit.json",
        machine={},
        date="2026-11-27",
        tried=tuple(TriedOptions(options=each, rate=rate) for each, rate in tried.items()),
    )
    assert told in reason_of(tuning)

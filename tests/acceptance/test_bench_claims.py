"""The benchmark of the field's claims plays every part; only what is computed is looked at."""

import re

import pytest

from benchmarks.claims.claim import CLAIMS
from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_every_claim_has_a_figure() -> None:
    printed = run_quickly("claims")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\w+) \| \*\*([\d.e+]+)(.*?)\*\* \|", printed, re.MULTILINE)
    assert {said for said, *_ in rows} == {claim.said for claim in CLAIMS.values()}
    computed = {compared: float(figure) for _, compared, way, figure, _ in rows if way == "computed"}
    minutes = [figure for compared, figure in computed.items() if "in 28 steps if" in compared]
    assert minutes == sorted(minutes, reverse=True)
    assert [figure for compared, figure in computed.items() if "step of ten images" in compared]

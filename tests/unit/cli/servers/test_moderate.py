"""`diffuserve moderate`: its options, without the classifier."""

import inspect
import sys
from pathlib import Path

import pytest

from diffuserve.cli.servers.moderate import moderate
from diffuserve.safety.moderation_api.limits import ModerationLimits
from support.command import Invoke


@pytest.mark.parametrize("name", ["max_inputs", "max_characters", "max_waiting"])
def test_limits_default_to_those_of_the_api(name: str) -> None:
    assert inspect.signature(moderate).parameters[name].default == getattr(ModerationLimits(), name)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--port", "65536"), ("--port", "-1"), ("--max-inputs", "0"), ("--max-waiting", "x")],
)
def test_values_out_of_range_are_refused(option: str, value: str, invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("moderate", str(tmp_path), option, value)
    assert refused.code == 2
    assert option in refused.err


def test_a_folder_without_a_classifier_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("moderate", str(tmp_path))
    assert refused.code == 2
    assert str(tmp_path) in refused.err.replace("\n", "")
    assert "Traceback" not in refused.err


def test_without_transformers_the_extra_is_named(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "diffuserve.safety.classifiers.text_checkpoint", None)
    refused = invoke("moderate", str(tmp_path))
    assert refused.code == 2
    assert "pip install 'diffuserve[transformers]'" in " ".join(refused.err.split())

"""`diffuserve show`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.cli.store.show import spec_facts
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import read_spec
from support.command import Invoke


def test_a_model_of_this_machine_is_shown_with_its_defaults_and_limits(invoke: Invoke) -> None:
    shown = invoke("show", "tiny-flux")
    assert shown.code == 0, shown.err
    assert "images of 128x128" in shown.out
    told = json.loads(invoke("show", "tiny-flux", "--json").out)
    assert told["path"] == str(bundled_models()["tiny-flux"])
    assert told["abilities"]["num_inference_steps"] == 4


def test_a_folder_is_shown_as_a_model(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(bundled_models()["tiny-sd"])
    shown = json.loads(invoke("show", str(tmp_path / "mine"), "--json").out)
    assert (shown["family"], shown["problem"]) == (read_spec("tiny-sd").family, "")


@pytest.mark.parametrize("model", ["flux-schnell", "z-image"])
def test_what_a_download_would_bring_is_shown_without_one(invoke: Invoke, model: str) -> None:
    shown = invoke("show", model).out
    assert "Apache-2.0" in shown
    assert f"`diffuserve pull {model}`" in shown


@pytest.mark.parametrize("model", ["tiny-flax", "owner/unknown"])
def test_an_unknown_model_is_refused(invoke: Invoke, model: str) -> None:
    refused = invoke("show", model)
    assert (refused.code, refused.out) == (2, "")
    assert model in refused.err


def test_clips_and_sounds_are_described_by_their_lengths() -> None:
    video = read_spec("tiny-video")
    assert f"clips of {video.num_frames} frames" in spec_facts(video)["makes"]
    assert spec_facts(replace(video, max_seconds=30.0))["makes"] == "sounds of up to 30 s"

"""`diffuserve safety`, and the filters of `diffuserve generate`."""

import asyncio
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.safety import Action, AuditEntry, SafetyStage
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from diffuserve.wiring.safety import open_expander, open_prompts
from support.command import run
from support.text_classifiers import write_onnx_classifier

POLICY = """
version: 1
extends: default
name: house
revision: "7"
categories:
  brands: {action: block, terms: [acmecola]}
tenants:
  newsroom:
    brands: {action: allow}
"""


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    monkeypatch.setenv("DIFFUSERVE_PROMPT_POLICY", str(path))
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "noise.png"
    levels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(levels).save(path)
    return path


def test_the_verdict_on_a_prompt_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "safety", "check", "a bottle of 4cmec0la") == 1
    shown = capsys.readouterr().out
    assert shown.startswith("block (brands)")
    assert "acmecola" in shown
    assert "house 7" in shown
    assert run(monkeypatch, "safety", "check", "a red circle") == 0
    assert capsys.readouterr().out.startswith("allow")


def test_the_rules_of_a_tenant_apply_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "safety", "check", "acmecola", "--tenant", "newsroom", "--json") == 0
    explained = json.loads(capsys.readouterr().out)
    assert (explained["action"], explained["category"], explained["findings"]) == ("allow", None, [])
    assert "house 7" in explained["filter"]["version"]


def test_the_verdict_on_an_image_is_explained(
    image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "safety", "check", str(image)) == 0
    assert "by opennsfw" in capsys.readouterr().out
    monkeypatch.setenv("DIFFUSERVE_IMAGE_RULES", '{"nsfw": {"threshold": 0, "action": "block"}}')
    assert run(monkeypatch, "safety", "check", str(image), "--json") == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["category"], finding["action"]) == ("nsfw", "block")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a cat", "--prompt-filter", "none"], "prompt_filter='none'"),
        (["a cat", "--prompt-filter", "some"], "must be embedded, policy"),
        (["a cat", "--prompt-filter", "onnx:/nowhere"], "/nowhere"),
        (["IMAGE", "--image-filter", "none"], "image_filter='none'"),
        (["IMAGE", "--image-filter", "some"], "must be opennsfw"),
        (["POLICY"], "is not an image"),
    ],
)
def test_missing_filters_and_files_are_refused(
    arguments: list[str],
    message: str,
    image: Path,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {"IMAGE": str(image), "POLICY": str(policy)}
    assert (
        run(monkeypatch, "safety", "check", *(named.get(argument, argument) for argument in arguments)) == 2
    )
    assert message in capsys.readouterr().err


def test_a_wrong_policy_is_refused_with_the_place_of_its_error(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.write_text(POLICY.replace("action: block", "action: forbid"), encoding="utf-8")
    assert run(monkeypatch, "safety", "check", "a cat") == 2
    assert "categories.brands.action='forbid'" in capsys.readouterr().err


def test_generate_refuses_a_blocked_prompt_before_it_loads_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_engine(*_: object) -> None:
        raise AssertionError("no model may be loaded")

    monkeypatch.setattr("diffuserve.cli.draw.generate.load_engine", load_engine)
    assert run(monkeypatch, "generate", "a cat", "acmecola", "-o", str(tmp_path / "out")) == 2
    assert "category 'brands'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_generate_writes_no_blocked_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    monkeypatch.setenv("DIFFUSERVE_IMAGE_RULES", '{"nsfw": {"threshold": 0, "action": "block"}}')
    words = ["a red circle", "-o", str(folder), "--size", "32x32", "--steps", "1", "--device", "cpu"]
    assert run(monkeypatch, "generate", *words) == 1
    assert "category 'nsfw'" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_the_audit_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = AuditEntry(
        tenant_id="studio",
        stage=SafetyStage.IMAGE,
        category="nsfw",
        action=Action.BLOCK,
        filter="f 1",
        job_id="job_1",
    )
    asyncio.run(_record(Settings(data_dir=tmp_path), entry))
    assert run(monkeypatch, "safety", "audit", "--data-dir", str(tmp_path), "--json") == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["tenant_id"], listed["stage"], listed["job_id"]) == ("studio", "image", "job_1")
    assert run(monkeypatch, "safety", "audit", "--data-dir", str(tmp_path), "--tenant", "else") == 0
    assert "studio" not in capsys.readouterr().out


async def _record(settings: Settings, entry: AuditEntry) -> None:
    async with open_store(settings) as store:
        await store.audit.note(entry)


async def test_a_server_logs_its_prompt_filter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with open_prompts(Settings(prompt_filter="none")) as prompts:
        assert prompts.filter_info is None
    assert "NO PROMPT FILTER" in caplog.text
    async with open_prompts(Settings(prompt_filter="policy")):
        assert "prompt filter: policy house 7" in caplog.text
    write_onnx_classifier(tmp_path / "onnx", labels=["sexual", "weather"])
    async with open_prompts(Settings(prompt_filter=f"onnx:{tmp_path / 'onnx'}")) as prompts:
        assert "scores for weather have no effect" in caplog.text
        assert (await prompts.moderate("a cat")).action is not None


def test_an_expander_with_a_malformed_key_is_refused() -> None:
    assert open_expander(Settings()) is None
    with pytest.raises(InvalidParams, match="expander_key"):
        open_expander(Settings(expander_url="http://127.0.0.1:1", expander_key="naïve"))

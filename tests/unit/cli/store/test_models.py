"""`diffuserve list`, `pull` and `rm` against a fake hub."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from diffuserve.cli.store.pull import pull_if_missing
from diffuserve.models import bundled
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import read_offer
from support.command import Invoke
from support.fake_hub import FakeHub, fake_hub, use_hub

REPO = "studio/shapes"
COMMIT = "0123456789" * 4
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    model = bundled_models()["tiny-flux"]
    configs = {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*config.json")}
    index = (model / "model_index.json").read_bytes()
    files = {**configs, "model_index.json": index, WEIGHTS: one_tensor(1_000)}
    with fake_hub(FakeHub(REPO, COMMIT, files)) as served:
        use_hub(served, tmp_path / "hub", monkeypatch)
        yield served


def one_tensor(length: int) -> bytes:
    """Return a safetensors file that holds zeros."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [length], "data_offsets": [0, 4 * length]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * length)


def test_a_model_is_pulled_listed_and_removed(invoke: Invoke, served: FakeHub, tmp_path: Path) -> None:
    pulled = invoke("pull", REPO)
    assert pulled.code == 0, pulled.err
    assert Path(pulled.out) == tmp_path / "hub" / "models--studio--shapes" / "snapshots" / COMMIT
    assert f"{REPO} at {COMMIT}:" in pulled.err
    assert f"diffuserve serve --model {REPO}\n" in pulled.err

    listed = {model["name"]: model for model in json.loads(invoke("list", "--json").out)}
    assert listed[REPO]["path"] == pulled.out
    assert (listed[REPO]["family"], listed[REPO]["problem"]) == ("flux", "")
    assert listed[REPO]["dtype"] == "float32"
    assert listed[REPO]["num_bytes"] == sum(map(len, served.files.values()))

    removed = invoke("rm", REPO, "--yes")
    assert (removed.code, removed.out) == (0, "")
    assert "kB freed" in removed.err
    assert list((tmp_path / "hub").glob("models--*")) == []


def test_the_abilities_of_a_model_are_known_before_its_weights_arrive(served: FakeHub) -> None:
    spec, _ = read_offer(f"{REPO}@{COMMIT}")
    assert spec.family == "flux"
    assert WEIGHTS not in served.fetched()


def test_generate_pulls_a_model_that_is_missing(served: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    pull_if_missing(f"{REPO}@{COMMIT}")
    assert f"{REPO} at {COMMIT}:" in capsys.readouterr().err
    num_requests = len(served.requests)
    pull_if_missing(REPO)
    assert len(served.requests) == num_requests


def test_a_second_pull_asks_the_hub_for_nothing_but_the_commit(invoke: Invoke, served: FakeHub) -> None:
    invoke("pull", REPO)
    num_fetched = len(served.fetched())
    assert invoke("pull", f"{REPO}@{COMMIT}").code == 0
    assert len(served.fetched()) == num_fetched


def test_a_partial_model_is_listed_as_such(invoke: Invoke, served: FakeHub) -> None:
    served.damaged.add(WEIGHTS)
    failed = invoke("pull", REPO)
    assert (failed.code, failed.out) == (1, "")
    listed = invoke("list")
    assert f"{REPO}: incomplete: `diffuserve pull {REPO}` continues" in listed.err
    assert invoke("rm", REPO, "--yes").code == 0
    assert REPO not in invoke("list").out


def test_a_model_of_another_kind_is_refused_before_its_weights_arrive(
    invoke: Invoke, served: FakeHub
) -> None:
    served.files = {**served.files, "model_index.json": b'{"_class_name": "OtherPipeline"}'}
    refused = invoke("pull", REPO)
    assert refused.code == 2
    assert "names 'OtherPipeline', which diffusers" in refused.err
    assert WEIGHTS not in served.fetched()


def test_a_gated_model_is_refused_with_the_remedy(invoke: Invoke, served: FakeHub) -> None:
    served.error = "GatedRepo"
    refused = invoke("pull", "flux-dev")
    assert refused.code == 2
    assert "model 'black-forest-labs/FLUX.1-dev' is gated: accept its terms at" in refused.err


def test_a_pull_without_space_is_refused_before_it_begins(
    invoke: Invoke, served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuserve.cli.store.pull._SPARE_BYTES", 1 << 60)
    refused = invoke("pull", REPO)
    assert refused.code == 2
    assert "HF_HOME" in refused.err
    assert served.fetched() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "tiny-flx"], "no model 'tiny-flx' to download"),
        (["pull", f"{REPO}@{COMMIT}", "--revision", "main"], "revision='main'"),
        (["rm", "tiny-flux", "--yes"], "is part of the package"),
        (["rm", "/models/mine", "--yes"], "remove its folder yourself"),
        (["rm", "nobody/nothing", "--yes"], "is not on this machine"),
        (["rm", "nobody/nothing@..", "--yes"], "is not on this machine"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], message: str, invoke: Invoke, served: FakeHub
) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_the_bundled_model_needs_no_download(invoke: Invoke) -> None:
    outcome = invoke("pull", "tiny-flux")
    assert (outcome.code, outcome.out) == (0, str(bundled_models()["tiny-flux"]))


def test_a_bundled_model_without_its_weights_is_listed_and_refused_with_the_remedy(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configs = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(bundled_models()["tiny-flux"], tmp_path / "tiny-flux", ignore=configs)
    monkeypatch.setattr(bundled, "_HOME", tmp_path)
    listed = invoke("list")
    assert (listed.code, listed.err.count("tiny-flux: the weights")) == (0, 1)
    for command in (("pull", "tiny-flux"), ("generate", "a star"), ("serve",), ("worker",)):
        refused = invoke(*command)
        assert refused.code == 2
        assert "tiny-flux: the weights of the bundled models are not installed" in refused.err
        assert "pip install 'diffuserve[models]'" in refused.err


def test_nothing_is_removed_unasked(invoke: Invoke, served: FakeHub) -> None:
    invoke("pull", REPO)
    refused = invoke("rm", REPO)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert REPO in invoke("list").out


def test_only_the_files_of_one_commit_are_removed(invoke: Invoke, served: FakeHub) -> None:
    invoke("pull", REPO)
    served.commit = "f" * 40
    served.files = {**served.files, "model_index.json": served.files["model_index.json"] + b" "}
    invoke("pull", REPO, "--revision", "v1")
    names = {model["name"] for model in json.loads(invoke("list", "--json").out)}
    assert {f"{REPO}@{COMMIT}", f"{REPO}@{'f' * 40}"} <= names
    assert invoke("rm", f"{REPO}@{COMMIT}", "--yes").code == 0
    [left] = [model for model in json.loads(invoke("list", "--json").out) if model["source"] == "hub"]
    assert (left["name"], left["problem"]) == (REPO, "")


def test_models_is_another_name_for_list(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert invoke("models", "--json").out == invoke("list", "--json").out

"""`diffuserve models`: models are published, listed, fetched, verified and removed, with clear refusals."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from diffuserve.cli.store import stored_models
from diffuserve.models.bundled import bundled_models
from diffuserve.models.weights.fingerprint import hash_weights
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.publishing import Garbage
from support.command import Invoke

TINY = bundled_models()["tiny-flux"]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = (tmp_path / "store").as_uri()
    monkeypatch.setenv("DIFFUSERVE_MODEL_STORE", url)
    monkeypatch.setenv("DIFFUSERVE_MODEL_CACHE", str(tmp_path / "cache"))
    return url


@pytest.fixture
def reference(invoke: Invoke, url: str) -> str:
    """Return the model that was published."""
    pushed = invoke("models", "push", "tiny-flux", "--name", "mine", "--license", "apache-2.0")
    assert pushed.code == 0, pushed.err
    return pushed.out.strip()


def test_a_pushed_model_is_listed_with_the_fingerprint_of_its_weights(
    invoke: Invoke, url: str, reference: str
) -> None:
    [listed] = json.loads(invoke("models", "list", "--json").out)
    assert f"{listed['name']}@{listed['hash']}" == reference
    assert (listed["family"], listed["license"]) == ("flux", "apache-2.0")
    assert listed["weights"] == hash_weights(TINY)
    assert "mine" in invoke("models", "list").out


def test_a_pulled_model_is_the_one_that_was_pushed(invoke: Invoke, url: str, reference: str) -> None:
    for name in ("mine", reference):
        pulled = invoke("models", "pull", name)
        assert pulled.code == 0, pulled.err
        assert hash_weights(Path(pulled.out.strip())) == hash_weights(TINY)


def test_a_stored_model_is_prepared_once(invoke: Invoke, url: str, reference: str, tmp_path: Path) -> None:
    folders = set()
    for _ in range(2):
        prepared = invoke("models", "prepare", "mine", "--device", "cpu", "--quantization", "int8")
        assert prepared.code == 0, prepared.err
        folders.add(Path(prepared.out.strip()))
    [folder] = folders
    assert folder.parent == tmp_path / "cache" / "prepared"
    assert [file.name for file in folder.glob("tr*")] == ["transformer.FluxTransformer.safetensors"]
    refused = invoke("models", "prepare", "no-such-model")
    assert refused.code == 2
    assert "no-such-model" in refused.err


def test_damage_is_told_with_exit_code_1(invoke: Invoke, url: str, reference: str) -> None:
    assert invoke("models", "verify", "mine").code == 0
    bucket = open_models(url)
    [weights] = [found for found in bucket.objects("models") if found.key.endswith("vae/config.json")]
    bucket.put(weights.key, b"x" * weights.size)
    told = invoke("models", "verify", "mine")
    assert told.code == 1
    assert "vae/config.json, from byte 0 on: differs from the manifest" in told.err


def test_a_model_is_removed_by_whoever_means_it(invoke: Invoke, url: str, reference: str) -> None:
    refused = invoke("models", "remove", "mine")
    assert refused.code == 2
    assert "give --yes" in refused.err
    assert invoke("models", "remove", "mine", "--yes").code == 0
    assert json.loads(invoke("models", "list", "--json").out) == []
    assert open_models(url).objects("models") == []


def test_garbage_is_collected_after_a_day(invoke: Invoke, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[timedelta] = []

    def collect(_bucket: object, _now: object, older_than: timedelta) -> Garbage:
        asked.append(older_than)
        return Garbage(("a", "b"), 2_000_000)

    monkeypatch.setattr(stored_models, "collect_garbage", collect)
    assert "deleted 2 objects, 2.0 MB freed" in invoke("models", "gc").err
    assert asked == [timedelta(days=1)]


def test_a_lying_manifest_spoils_the_list_of_no_other_model(invoke: Invoke, url: str, reference: str) -> None:
    bucket = open_models(url)
    bucket.put(f"names/liar/{'0' * 64}", b"")
    bucket.put(f"models/{'0' * 64}/manifest.json", b"{}")
    listed = invoke("models", "list", "--json")
    assert [model["name"] for model in json.loads(listed.out)] == ["mine"]
    assert "a manifest that is none" in listed.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["models", "pull", "mine"], "no model 'mine'"),
        (["models", "pull", "../mine"], "names no model of a store"),
        (["models", "verify", "mine@123"], "at least 12 digits"),
        (["models", "push", "nowhere"], "no model 'nowhere'"),
        (["models", "push", "tiny-flux", "--name", "a/b"], "names no model of a store"),
        (["models", "push", "tiny-flux", "--model-store", "http://x"], "give s3://bucket/prefix"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    invoke: Invoke, url: str, arguments: list[str], told: str
) -> None:
    refused = invoke(*arguments)
    assert refused.code == 2
    assert told in refused.err
    assert len(refused.err.strip().splitlines()) == 1


def test_without_a_store_the_remedy_is_named(invoke: Invoke) -> None:
    assert invoke("models", "list", "--json").out == invoke("list", "--json").out, "those on this machine"
    refused = invoke("models", "gc")
    assert refused.code == 2
    assert "DIFFUSERVE_MODEL_STORE" in refused.err

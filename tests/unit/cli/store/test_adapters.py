"""`diffuserve adapters`: named from a file, the hub or a bucket, listed, fetched and removed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from safetensors.numpy import save_file

from contract.test_model_bucket import use_server
from diffuserve.modelstore.bucket import open_place
from support.command import Invoke
from support.fake_hub import FakeHub, fake_hub, use_hub
from support.s3 import S3Server


def adapter(path: Path, width: int = 192) -> Path:
    layer = "transformer.single_transformer_blocks.0.proj_mlp"
    down, up = np.ones((2, width), np.float32), np.ones((4 * width, 2), np.float32)
    save_file({f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}, path)
    return path


def stored(invoke: Invoke, *options: str) -> list[dict[str, Any]]:
    """Return what is listed of the store."""
    listed = json.loads(invoke("adapters", "list", "--json", *options).out)
    return [entry for entry in listed if entry["origin"] == "store"]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIFFUSERVE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DIFFUSERVE_MODEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def test_an_adapter_is_named_shown_fetched_and_removed(invoke: Invoke, tmp_path: Path, data: Path) -> None:
    file = adapter(tmp_path / "ink.safetensors")
    pushed = invoke("adapters", "push", str(file), "--model", "tiny-flux")
    assert (pushed.code, pushed.out) == (0, "ink"), pushed.err
    assert data.stat().st_mode & 0o077 == 0
    assert invoke("adapters", "push", str(file), "--name", "own", "--tenant", "acme").code == 0
    listed = stored(invoke)
    assert [(entry["name"], entry["tenant"]) for entry in listed] == [("ink", None), ("own", "acme")]
    assert [entry["name"] for entry in stored(invoke, "--tenant", "b")] == ["ink"]
    assert "tiny-flux" in invoke("adapters", "list").out
    assert listed[0]["digest"] in invoke("adapters", "show", "ink").out
    pulled = invoke("adapters", "pull", "ink")
    assert Path(pulled.out.strip()).read_bytes() == file.read_bytes(), pulled.err
    assert "give --yes" in invoke("adapters", "remove", "ink").err
    assert invoke("adapters", "remove", "ink", "--yes").code == 0
    missing = invoke("adapters", "show", "owm", "--tenant", "acme")
    assert missing.code == 2
    assert "did you mean 'own'" in missing.err


def test_adapters_that_are_in_no_store_are_listed_with_where_they_come_from(
    invoke: Invoke, tmp_path: Path
) -> None:
    files = json.dumps({"mine": str(adapter(tmp_path / "ink.safetensors"))})
    listed = json.loads(invoke("adapters", "list", "--json", "--adapter-files", files).out)
    found = [(entry["name"], entry["origin"], entry["model"]) for entry in listed]
    assert found == [
        ("gilded", "model", "tiny-emoji"),
        ("copper-moon", "model", "tiny-flux"),
        ("mine", "file", None),
    ]
    missing = invoke("adapters", "list", "--adapter-files", '{"mine": "none.safetensors"}')
    assert (missing.code, "none.safetensors" in missing.err) == (2, True)


def test_what_does_not_fit_gets_no_name(invoke: Invoke, tmp_path: Path) -> None:
    foreign = adapter(tmp_path / "wide.safetensors", width=3_072)
    refused = invoke("adapters", "push", str(foreign), "--model", "tiny-flux")
    assert refused.code == 2
    assert "than tiny-flux: it changes (12288, 3072) numbers" in refused.err
    assert "give one with --name" in invoke("adapters", "push", str(adapter(tmp_path / "-.safetensors"))).err
    (tmp_path / "ink.bin").write_bytes(b"pickle")
    assert "pickles can run code" in invoke("adapters", "push", str(tmp_path / "ink.bin")).err
    assert stored(invoke) == []


def test_an_adapter_comes_from_the_hub(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = adapter(tmp_path / "ink.safetensors").read_bytes()
    served = FakeHub("studio/ink", "0123456789" * 4, {"README.md": b"ink", "ink.safetensors": content})
    with fake_hub(served):
        use_hub(served, tmp_path / "hub", monkeypatch)
        pushed = invoke("adapters", "push", "hf://studio/ink")
        assert (pushed.code, pushed.out) == (0, "ink"), pushed.err
        named = invoke("adapters", "push", "hf://studio/ink/ink.safetensors", "--name", "b")
        assert named.out == "b", named.err
        assert "did you mean" in invoke("adapters", "push", "hf://studio/ink/inc.safetensors").err
        assert "give hf://OWNER/NAME" in invoke("adapters", "push", "hf://studio").err


def test_an_adapter_comes_from_a_bucket(
    invoke: Invoke, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, s3.url)
    url = f"s3://{s3.create_bucket()}/loras"
    content = adapter(tmp_path / "ink.safetensors").read_bytes()
    obstore.put(open_place(url, "source")[0], "ink.safetensors", content)
    pushed = invoke("adapters", "push", f"{url}/ink.safetensors", "--adapter-store", url)
    assert (pushed.code, pushed.out) == (0, "ink"), pushed.err
    assert stored(invoke, "--adapter-store", url)[0]["name"] == "ink"
    missing = invoke("adapters", "push", f"{url}/none.safetensors", "--adapter-store", url)
    assert "there is no such file" in missing.err

"""The hash identifies the weights of a model."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from diffuserve.domain.quantization import Quantization
from diffuserve.models import published
from diffuserve.models.bundled import bundled_models
from diffuserve.models.fingerprint import fingerprint, hash_file, hash_weights


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("vae", "transformer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path


def test_the_hash_changes_with_any_weight_and_any_name(model: Path) -> None:
    before = hash_weights(model)
    assert hash_weights(model) == before
    weights = model / "vae" / "model.safetensors"
    weights.write_bytes(b"vaf")
    changed = hash_weights(model)
    weights.rename(model / "vae" / "other.safetensors")
    assert len({before, changed, hash_weights(model)}) == 3


def test_configs_are_not_part_of_the_hash(model: Path) -> None:
    before = hash_weights(model)
    (model / "vae" / "config.json").write_text("{}")
    assert hash_weights(model) == before


def test_the_hash_can_be_computed_with_a_shell() -> None:
    folder = bundled_models()["tiny-flux"]
    command = "LC_ALL=C sha256sum */*.safetensors | sha256sum"
    told = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True)
    assert told.stdout.split()[0] == hash_weights(folder)


def test_in_the_hubs_cache_no_weight_is_read(tmp_path: Path) -> None:
    name = hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / name).write_bytes(b"not what the name says, so that a reader would be found out")
    link = tmp_path / "model.safetensors"
    link.symlink_to(tmp_path / "blobs" / name)
    assert hash_file(link) == name


def test_the_same_files_have_another_fingerprint_in_fewer_bits() -> None:
    assert fingerprint("abc", Quantization.NONE) == "abc"
    assert len({fingerprint("abc", kind) for kind in Quantization}) == len(Quantization)


def test_a_manifest_is_parsed_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("a" * 64) / "mine"
    (folder / "vae").mkdir(parents=True)
    names = [f"vae/{number}.safetensors" for number in range(9)]
    for name in names:
        (folder / name).write_bytes(b"12345")
    files = [{"path": name, "size": 5, "sha256": "b" * 64} for name in names]
    (folder.parent / "manifest.json").write_text(json.dumps({"files": files}))
    published._files.cache_clear()
    hash_weights(folder)
    assert published._files.cache_info().misses == 1
    monkeypatch.setattr(published, "MAX_MANIFEST_BYTES", 10)
    os.utime(folder.parent / "manifest.json", (1, 1))
    assert hash_file(folder / names[0]) == hashlib.sha256(b"12345").hexdigest(), "it is too large to be one"


def test_a_file_of_a_model_store_is_known_by_its_manifest(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 64) / "mine"
    (folder / "vae").mkdir(parents=True)
    (folder / "vae" / "x.safetensors").write_bytes(b"12345")
    read = hash_weights(folder)
    manifest = {"files": [{"path": "vae/x.safetensors", "size": 5, "sha256": "b" * 64}]}
    (folder.parent / "manifest.json").write_text(json.dumps(manifest))
    assert hash_file(folder / "vae" / "x.safetensors") == "b" * 64
    (folder / "vae" / "x.safetensors").write_bytes(b"123456")
    assert hash_file(folder / "vae" / "x.safetensors") != "b" * 64
    (folder.parent / "manifest.json").write_text("{}")
    (folder / "vae" / "x.safetensors").write_bytes(b"12345")
    assert hash_weights(folder) == read

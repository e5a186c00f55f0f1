"""The hash identifies the weights of a model."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.weights.fingerprint import fingerprint, hash_file, hash_weights, with_companions
from diffuserve.models.weights.published import publish


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


def test_files_of_a_store_are_known_until_they_change_and_a_forged_manifest_is_none(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("a" * 64) / "mine"
    file = folder / "vae" / "x.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"12345")
    read, forged = hash_file(file), {"path": "vae/x.safetensors", "size": 5, "sha256": "b" * 64}
    (folder.parent / "manifest.json").write_text(json.dumps({"files": [forged]}))
    assert hash_file(file) == read
    publish(folder, {"vae/x.safetensors": (5, "b" * 64)})
    assert hash_file(file) == "b" * 64
    file.write_bytes(b"123456")
    assert hash_file(file) == hashlib.sha256(b"123456").hexdigest()


def test_what_is_loaded_beside_a_model_tells_its_checkpoints_apart(model: Path) -> None:
    def identity() -> str:
        return with_companions("weights", companions_of({"canny": model / "vae"}, model / "transformer"))

    before = identity()
    assert before != with_companions("weights", companions_of({"pose": model / "vae"}, model / "transformer"))
    for part in ("vae", "transformer"):
        (model / part / "model.safetensors").write_bytes(b"another")
        assert identity() != before
        before = identity()
    assert with_companions("weights", companions_of({})) == "weights"

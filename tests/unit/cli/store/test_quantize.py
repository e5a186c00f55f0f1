"""`diffuserve quantize` writes a folder, or says why not."""

from pathlib import Path

from diffuserve.models.registry import check_model
from support.command import Invoke


def test_a_folder_is_written_and_named(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-int8"
    done = invoke("quantize", "tiny-flux", str(folder))
    assert (done.code, done.out.strip()) == (0, str(folder))
    assert "of weights instead of" in done.err
    assert check_model(str(folder)).spec.name == "tiny-flux"


def test_none_and_folders_that_are_there_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("quantize", "tiny-flux", str(tmp_path / "new"), "--quantization", "none")
    assert refused.code != 0
    assert "leaves everything as it is" in refused.err
    refused = invoke("quantize", "tiny-flux", str(tmp_path))
    assert refused.code != 0
    assert "is there already" in refused.err
    refused = invoke("quantize", "tiny-flux", "/proc/new")
    assert refused.code != 0
    assert "folder='/proc/new': cannot be written (No such file" in refused.err
    assert not (tmp_path / "new").exists()

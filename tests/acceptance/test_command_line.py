"""Commands that generate: real processes where that matters, else within the test's process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from diffuserve.media.image_file import read_parameters
from support.command import Invoke, invoker
from support.waiting import HANG_SECONDS, block_until

DIFFUSERVE = [sys.executable, "-m", "diffuserve"]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFUSERVE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    return invoker(monkeypatch, capsys)


def diffuserve(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*DIFFUSERVE, *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=2 * HANG_SECONDS, check=False
    )


def test_generate_writes_images_that_can_be_reproduced(tmp_path: Path, invoke: Invoke) -> None:
    arguments = ["a red circle", "a BLUE star", "--size", "64x96", "--steps", "2", "--seed", "5", "--grid"]
    done = diffuserve("generate", *arguments, "-o", "images", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    paths = [tmp_path / line for line in done.stdout.split()]
    names = [path.name for path in paths]
    assert names == ["contact_sheet.png", "a-red-circle-5.png", "a-blue-star-6.png"]
    for path in paths[1:]:
        with Image.open(path) as image:
            assert image.size == (64, 96)
    embedded = read_parameters(paths[2])
    assert embedded["prompt"] == "a BLUE star"
    assert (embedded["seed"], embedded["model"]) == (6, "tiny-flux")
    again = ["--size", "64x96", "--steps", "2", "--seed", str(embedded["seed"]), "-o", "again.png"]
    assert invoke("generate", embedded["prompt"], *again).code == 0
    with Image.open(tmp_path / "again.png") as one, Image.open(paths[2]) as other:
        difference = [abs(a - b) for a, b in zip(one.tobytes(), other.tobytes(), strict=True)]
    assert max(difference) <= 16, "bf16: the same image but for roundings"


def test_a_truncated_prompt_is_warned_about(invoke: Invoke) -> None:
    done = invoke("generate", "a red star " * 30, "--size", "64x64", "--steps", "1")
    assert done.code == 0
    assert "warning" in done.err


def test_several_images_of_one_prompt_are_numbered(tmp_path: Path, invoke: Invoke) -> None:
    arguments = ["a ring", "[/b] star", "--size", "64x64", "--steps", "1", "--seed", "1", "--num-images", "2"]
    done = invoke("generate", *arguments, "-o", "ring.webp")
    assert done.code == 0, done.err
    assert sorted(done.out.split()) == ["ring-1.webp", "ring-2.webp", "ring-3.webp", "ring-4.webp"]
    embedded = [read_parameters(tmp_path / name) for name in done.out.split()]
    assert [parameters["seed"] for parameters in embedded] == [1, 2, 3, 4]
    assert [parameters["prompt"] for parameters in embedded] == ["a ring", "a ring", "[/b] star", "[/b] star"]


def test_ctrl_c_keeps_finished_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Ctrl-C when the first images are saved and other requests still wait."""
    monkeypatch.setenv("DIFFUSERVE_TOKEN_BUDGET", "600")  # the first image is soon there: one in each step
    prompts = [f"star {number}" for number in range(24)]
    process = subprocess.Popen(
        [*DIFFUSERVE, "generate", *prompts, "--size", "384x384", "--steps", "1", "--seed", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    block_until(lambda: bool(list((tmp_path / "out").glob("*.png"))))
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, errors
    kept = output.split()
    assert f"stopped: {len(kept)} of 24" in errors
    assert 1 <= len(kept) < 24
    assert all(read_parameters(tmp_path / path)["prompt"].startswith("star") for path in kept)
    assert "Traceback" not in errors


def test_models_lists_the_bundled_one(invoke: Invoke) -> None:
    done = invoke("models")
    assert done.code == 0
    assert "tiny-flux" in done.out


@pytest.mark.slow  # unit tests calibrate an engine of a fake pipeline
def test_calibrate_keeps_a_fit_for_later_runs(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("calibrate")
    assert done.code == 0, done.err
    kept = list((tmp_path / "cache" / "cost_fit").glob("*.json"))
    assert [f"kept in {path}" for path in kept] == [done.out.strip()] or "not kept" in done.err

"""`diffuserve generate`, with a real engine that runs a fake pipeline."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from diffuserve.cli.options import parse_size
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.image_file import read_parameters
from diffuserve.testing.fake_pipeline import FakePipeline
from diffuserve.worker.config import EngineProcessConfig
from support.command import Invoke

SMALL = ("--size", "32x32", "--steps", "2", "--seed", "5")


@pytest.fixture(autouse=True)
def loaded(fake: FakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[EngineProcessConfig]:
    """The configurations of the engines that the command loads."""
    configs: list[EngineProcessConfig] = []

    def load(config: EngineProcessConfig, console: Console) -> Engine:
        configs.append(config)
        return Engine(fake, EngineConfig(token_budget=1, num_threads=1))

    monkeypatch.setattr("diffuserve.cli.generate.load_engine", load)
    monkeypatch.setenv("DIFFUSERVE_IMAGE_FILTER", "none")
    monkeypatch.setenv("DIFFUSERVE_PROMPT_FILTER", "none")
    monkeypatch.chdir(tmp_path)
    return configs


@pytest.mark.parametrize(
    ("text", "size"),
    [("128x96", (128, 96)), (" 64 X 32 ", (64, 32)), ("64×32", (64, 32)), (None, (None, None))],
)
def test_sizes_are_parsed(text: str | None, size: tuple[int | None, int | None]) -> None:
    assert parse_size(text) == size


def test_paths_of_the_images_go_to_stdout(invoke: Invoke) -> None:
    done = invoke("generate", "a red star", "a blue star", *SMALL)
    assert done.code == 0
    assert done.out.split() == ["out/a-red-star-5.png", "out/a-blue-star-6.png"]
    assert all(Path(path).is_file() for path in done.out.split())


def test_seeds_count_on_over_prompts_and_images(invoke: Invoke) -> None:
    paths = invoke("generate", "red", "blue", *SMALL, "--num-images", "2").out.split()
    assert [read_parameters(Path(path))["seed"] for path in paths] == [5, 6, 7, 8]


def test_a_contact_sheet_is_listed_first(invoke: Invoke) -> None:
    paths = invoke("generate", "red", "blue", *SMALL, "--grid", "-o", "star.png").out.split()
    assert paths == ["star-grid.png", "star-1.png", "star-2.png"]
    assert Path("star-grid.png").is_file()


def test_timings_go_to_stderr(invoke: Invoke) -> None:
    done = invoke("generate", "red", *SMALL)
    assert "denoise" in done.err
    assert "denoise" not in done.out


def test_options_and_settings_configure_the_engine(
    invoke: Invoke, loaded: list[EngineProcessConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFUSERVE_TOKEN_BUDGET", "512")
    invoke("generate", "red", *SMALL, "--device", "cpu", "--dtype", "float32", "--deterministic")
    [config] = loaded
    assert (config.device, config.dtype) == ("cpu", "float32")
    assert (config.engine.deterministic, config.engine.token_budget) == (True, 512)
    assert config.engine.cost_fit_path is not None


def test_files_may_carry_no_parameters(invoke: Invoke) -> None:
    [path] = invoke("generate", "red", *SMALL, "--no-metadata").out.split()
    assert not read_parameters(Path(path))


def test_a_request_that_fails_is_reported_and_the_others_are_saved(
    invoke: Invoke, fake: FakePipeline
) -> None:
    def fail_green(params: Sequence[GenerationParams]) -> None:
        if any(request.prompt == "green" for request in params):
            raise RuntimeError("no green today")

    fake.on_denoise = fail_green
    done = invoke("generate", "red", "green", "blue", *SMALL)
    assert done.code == 1
    assert done.out.split() == ["out/red-5.png", "out/blue-7.png"]
    assert "no green today" in " ".join(done.err.split())


def test_ctrl_c_keeps_finished_images(invoke: Invoke, fake: FakePipeline) -> None:
    def interrupt_at_blue(params: Sequence[GenerationParams]) -> None:
        if any(request.prompt == "blue" for request in params):
            raise KeyboardInterrupt

    fake.on_encode = interrupt_at_blue
    done = invoke("generate", "red", "blue", *SMALL)
    assert done.code == 130
    assert "of 2 requests were finished" in done.err


def test_no_request_is_started_if_one_is_refused(invoke: Invoke, fake: FakePipeline) -> None:
    refused = invoke("generate", "red", "blue", "--size", "32x99999")
    assert refused.code == 2
    assert fake.encoded_batches == []
    assert not Path("out").exists()


def test_prompts_are_cleaned_as_a_control_plane_does(invoke: Invoke) -> None:
    [path] = invoke("generate", "  a\u200b  red star ", *SMALL).out.split()
    assert "\u200b" not in read_parameters(Path(path))["prompt"]

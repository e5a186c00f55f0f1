"""`diffuserve generate`, with a real engine that runs a fake pipeline."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from PIL import Image

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.generate import check
from diffuserve.cli.options import parse_size
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.image_file import read_parameters
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.settings import Settings
from diffuserve.testing.fake_pipeline import FAKE_SPEC, FakePipeline, color_of
from support.command import Invoke

SMALL = ("--size", "32x32", "--steps", "2", "--seed", "5")


@pytest.fixture(autouse=True)
def loaded(fake: FakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[EngineProcessConfig]:
    """The configurations of the engines that the command loads."""
    configs: list[EngineProcessConfig] = []

    def load(config: EngineProcessConfig, console: Console) -> Engine:
        configs.append(config)
        return Engine(fake, EngineConfig(token_budget=1, num_threads=1))

    for module in ("generate", "prompt_loop"):
        monkeypatch.setattr(f"diffuserve.cli.draw.{module}.load_engine", load)
    monkeypatch.setenv("DIFFUSERVE_IMAGE_FILTER", "none")
    monkeypatch.setenv("DIFFUSERVE_PROMPT_FILTER", "none")
    monkeypatch.chdir(tmp_path)
    return configs


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128x96", (128, 96)),
        (" 64 X 32 ", (64, 32)),
        ("64×32", (64, 32)),
        ("96", (96, 96)),
        (None, (None, None)),
    ],
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


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have the next command read lines from its standard input."""
    monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))


def test_a_dash_stands_for_the_lines_of_standard_input(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "red", "", " blue ")
    sides = ("--width", "32", "--height", "48", "--steps", "2", "--seed", "5")
    paths = invoke("generate", "green", "-", *sides).out.split()
    assert paths == ["out/green-5.png", "out/red-6.png", "out/blue-7.png"]
    with Image.open(paths[1]) as image:
        assert image.size == (32, 48)
    typed(monkeypatch)
    assert "standard input is empty" in invoke("generate", "-").err


class TestPromptAfterPrompt:
    def test_is_drawn_by_one_engine_until_the_end(
        self, invoke: Invoke, loaded: list[EngineProcessConfig], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed(monkeypatch, "red", "", "blue")
        done = invoke("run", "tiny-flux", *SMALL)
        assert (done.code, done.out.split()) == (0, ["out/red-5.png", "out/blue-5.png"])
        assert [config.model for config in loaded] == ["tiny-flux"]

    def test_goes_on_after_one_that_cannot_be_drawn(
        self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed(monkeypatch, "red " * 10_000, "blue")
        done = invoke("run", *SMALL)
        assert (done.code, done.out.split()) == (0, ["out/blue-5.png"])
        assert "prompt" in done.err

    def test_is_taken_from_the_arguments_where_there_are_some(
        self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed(monkeypatch, "never")
        done = invoke("run", "tiny-flux", "red", "blue", *SMALL)
        assert (done.code, done.out.split()) == (0, ["out/red-5.png", "out/blue-5.png"])

    @pytest.mark.parametrize(
        "options",
        [("--size", "33x7"), ("-o", "star.png"), ("no-such-model",), ("tiny-flux", "red " * 10_000)],
    )
    def test_is_refused_before_anything_is_loaded(
        self, invoke: Invoke, loaded: list[EngineProcessConfig], options: tuple[str, ...]
    ) -> None:
        assert (invoke("run", *options).code, loaded) == (2, [])


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


def test_adapters_that_a_prompt_names_are_asked_for() -> None:
    settings = Settings()
    named = GenerationParams(prompt="a red star <lora:copper-moon:0.5>")
    [request], _ = check([named], settings, settings.engine_process, Path("out"))
    assert (request.prompt, request.adapters) == ("a red star", (AdapterUse("copper-moon", 0.5),))


@dataclass(frozen=True)
class FakeModel:
    """The fake model before it is loaded."""

    spec: ModelSpec = FAKE_SPEC

    def min_bytes(self, _params: GenerationParams) -> int:
        return 1


@pytest.fixture
def harbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image of one color, at `harbor.png` in the working folder; the model takes images."""
    monkeypatch.setattr("diffuserve.cli.preflight.check_model", lambda *_: FakeModel())
    path = tmp_path / "harbor.png"
    Image.new("RGB", (48, 32), (100, 150, 200)).save(path)
    return path


def test_an_image_is_where_drawing_starts_and_its_size_is_kept(invoke: Invoke, harbor: Path) -> None:
    done = invoke("generate", "a star", "--guidance", "1", "--image", "harbor.png", "--strength", "0.5")
    assert done.code == 0, done.err
    path = Path(done.out)
    with Image.open(path) as image:
        assert image.size == (48, 32)
        expected = (np.array([100, 150, 200]) + (color_of("a star").flatten().numpy() + 1) * 127.5) / 2
        assert np.abs(np.asarray(image) - expected).max() <= 1


def test_a_file_names_its_input_images_and_holds_neither_pixels_nor_paths(
    invoke: Invoke, harbor: Path
) -> None:
    masked = ("--image", str(harbor), "--mask", str(harbor))
    done = invoke("generate", "a star", *SMALL, *masked)
    parameters = read_parameters(Path(done.out))
    (image_id,) = {parameters["image"]["id"]}
    assert parameters["image"] == {"id": image_id, "width": 48, "height": 32, "mode": "RGB"}
    assert parameters["mask"]["mode"] == "L"
    assert str(harbor.parent) not in Path(done.out).read_bytes().decode("latin-1")


def test_several_images_and_prompts_share_a_command(
    invoke: Invoke, fake: FakePipeline, harbor: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (48, 32)).save(tmp_path / "night.png")
    images = ("--image", "harbor.png", "--image", "night.png")
    done = invoke("generate", "red", "blue", *SMALL, *images, "--negative-prompt", " no\tpeople ")
    assert len(done.out.split()) == 2
    requests = [request for batch in fake.encoded_batches for request in batch]
    assert [len(request.images) for request in requests] == [2, 2]
    assert {request.negative_prompt for request in requests} == {"no people"}


def test_an_image_may_be_a_data_url(invoke: Invoke, harbor: Path) -> None:
    url = f"data:image/png;base64,{base64.b64encode(harbor.read_bytes()).decode()}"
    assert invoke("generate", "red", "--image", url).code == 0


def test_an_image_may_be_downloaded(invoke: Invoke, harbor: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(harbor.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert invoke("generate", "red", "--image", f"{url}/harbor.png").code == 0
        missing = invoke("generate", "red", "--image", f"{url}/nothing.png")
        server.shutdown()
    assert missing.code == 2
    assert "cannot be downloaded" in missing.err
    assert "404" in missing.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--image", "missing.png"), "image='missing.png': cannot be read (No such file or directory)"),
        (("--image", "notes.txt"), "image='notes.txt': is no image"),
        (("--image", "data:image/png,raw"), "is no data URL"),
        (("--mask", "harbor.png"), "needs the image that it belongs to"),
        (("--strength", "0.5"), "needs an image to start from"),
        (("--image", "harbor.png", "--strength", "1.5"), "strength=1.5: must lie in 0…1"),
        (("--image", "harbor.png") * 3, "takes at most 2"),
        (("--sampler", "eulr"), "did you mean 'euler'?"),
        (("--sampler", "euler"), "fake-video cannot use it"),
    ],
)
def test_bad_images_and_samplers_are_refused_before_anything_is_loaded(
    invoke: Invoke,
    loaded: list[EngineProcessConfig],
    harbor: Path,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    Path("notes.txt").write_text("no image")
    done = invoke("generate", "red", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert loaded == []

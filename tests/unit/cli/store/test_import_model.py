"""`diffuserve import`, and `diffuserve pull` of a single file or of parts of a model."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import open_model
from diffuserve.models.folders.known_models import KNOWN_MODELS, known_model
from diffuserve.models.registry import find_quantization
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.command import Invoke
from support.fake_hub import FakeHub, fake_hub, use_hub
from support.gguf_files import quantized_file
from support.original_layouts import flux_layout, image_vae_layout, read_part, write_original

REPO = "studio/shapes"
COMMIT = "0123456789" * 4
DEV = "black-forest-labs/FLUX.1-dev"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of imported models, and have no model of the hub on this machine."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "data" / "diffuserve" / "models"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux_checkpoint(tmp_path_factory.mktemp("flux") / "base", kind="dev", seed=4)


@pytest.fixture(scope="module")
def file(base: Path) -> Path:
    """A transformer alone."""
    parts = {"transformer": ("", flux_layout)}
    return write_original(base.parent / "mine.safetensors", base, parts, {"modelspec.license": "MIT"})


def test_a_file_becomes_a_model_that_is_listed_and_removed(
    invoke: Invoke, base: Path, file: Path, data: Path
) -> None:
    made = invoke("import", str(file), "--as", "mine", "--base", str(base))
    assert made.code == 0, made.err
    assert Path(made.out) == data / "mine" == open_model("mine").path
    assert "mine.safetensors: FLUX.1 dev, 2.0 MB; it has transformer" in made.err
    assert "license, as the file says: MIT" in made.err
    assert "diffuserve serve --model mine\n" in made.err
    origin = json.loads((data / "mine" / "import.json").read_text())
    assert (origin["file"], origin["kind"], origin["license"]) == ("mine.safetensors", "FLUX.1 dev", "MIT")

    listed = {model["name"]: model for model in json.loads(invoke("list", "--json").out)}
    assert (listed["mine"]["source"], listed["mine"]["family"], listed["mine"]["problem"]) == (
        "imported",
        "flux",
        "",
    )
    removed = invoke("rm", "mine", "--yes")
    assert (removed.code, list(data.iterdir())) == (0, [])


@pytest.mark.parametrize("option", [(), ("--dequantize",)])
def test_a_gguf_file_becomes_a_model_that_tells_its_bits(
    option: tuple[str, ...], invoke: Invoke, base: Path, tmp_path: Path
) -> None:
    tensors = flux_layout(read_part(base, "transformer"))
    file = quantized_file(tmp_path / "mine.gguf", tensors, {r".*blocks\..*": "Q8_0"}, "flux")
    made = invoke("import", str(file), "--as", "mine", "--base", str(base), *option)
    assert made.code == 0, made.err
    assert ("transformer: weights in few bits" in made.err) is not bool(option)
    assert "transformer: weights that become bfloat16: " in made.err
    assert find_quantization("mine", None) is (Quantization.NONE if option else Quantization.INT8)


def test_what_a_file_lacks_is_named_with_the_command_that_gets_it(invoke: Invoke, file: Path) -> None:
    refused = invoke("import", str(file), "--as", "mine")
    assert refused.code == 2
    assert "`diffuserve pull flux-dev --parts vae,text_encoder,text_encoder_2`" in refused.err


def test_parts_come_from_files_and_folders_that_are_given(
    invoke: Invoke, base: Path, file: Path, data: Path, tmp_path: Path
) -> None:
    other = write_flux_checkpoint(tmp_path / "other", kind="dev", seed=5)
    vae = write_original(tmp_path / "ae.safetensors", other, {"vae": ("", image_vae_layout)})
    given = f"vae={vae},text_encoder={other / 'text_encoder'}"
    made = invoke("import", str(file), "--as", "mine", "--base", str(base), "--parts", given)
    assert made.code == 0, made.err
    for component, source in {"vae": other, "text_encoder": other, "text_encoder_2": base}.items():
        found, wanted = read_part(data / "mine", component), read_part(source, component)
        assert all(found[name].equal(wanted[name]) for name in wanted)


def test_a_relative_path_is_a_folder_though_it_looks_like_a_hub_id(
    invoke: Invoke, base: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parents[1])
    given = f"{base.parent.name}/{base.name}"
    assert invoke("import", str(file), "--as", "mine", "--base", given).code == 0


def test_a_base_of_another_kind_is_refused(invoke: Invoke, file: Path, tmp_path: Path) -> None:
    schnell = write_flux_checkpoint(tmp_path / "schnell", kind="schnell")
    refused = invoke("import", str(file), "--as", "mine", "--base", str(schnell))
    assert refused.code == 2
    assert "its guidance_embeds is False; give --base flux-dev" in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--as", "tiny-flux"], "is the name of a model that is known already"),
        (["--as", "flux-dev"], "is the name of a model that is known already"),
        (["--as", "../mine"], "must be of small letters"),
        (["--as", "mine", "--parts", "vae"], "such as vae=ae.safetensors"),
        (["--as", "mine", "--parts", "vae=/no/such/file"], "such as vae=ae.safetensors"),
        (["--as", "mine", "--base", "no-such-model"], "no model 'no-such-model'"),
        (["--as", "mine", "--base", "BASE", "--parts", "unet=FILE"], "is no part of FLUX.1 dev: scheduler"),
        (["--as", "mine", "--base", "BASE", "--parts", "tokenizer=FILE"], "must be a folder"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_remedy(
    invoke: Invoke, base: Path, file: Path, data: Path, arguments: list[str], message: str
) -> None:
    given = [text.replace("BASE", str(base)).replace("FILE", str(file)) for text in arguments]
    refused = invoke("import", str(file), *given)
    assert refused.code == 2
    assert message in refused.err
    assert not data.exists()


class TestPulledFromTheHub:
    @pytest.fixture
    def served(
        self, base: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FakeHub]:
        files = {path.relative_to(base).as_posix(): path.read_bytes() for path in base.rglob("*.*")}
        files["mine.safetensors"] = file.read_bytes()
        with fake_hub(FakeHub(REPO, COMMIT, files)) as served:
            use_hub(served, tmp_path / "hub", monkeypatch)
            yield served

    def test_a_single_file_is_imported_and_its_base_needs_no_denoiser(
        self, invoke: Invoke, served: FakeHub, data: Path
    ) -> None:
        parts = invoke("pull", REPO, "--parts", "vae,text_encoder,text_encoder_2")
        assert parts.code == 0, parts.err
        fetched = set(served.fetched())
        assert {"vae/diffusion_pytorch_model.safetensors", "tokenizer/tokenizer.json"} <= fetched
        assert "transformer/diffusion_pytorch_model.safetensors" not in fetched
        made = invoke("pull", f"{REPO}:mine.safetensors", "--as", "mine", "--base", REPO)
        assert made.code == 0, made.err
        assert f"{REPO} at {COMMIT}: mine.safetensors, 2.0 MB; 2.0 MB to download" in made.err
        assert open_model("mine").path == data / "mine"
        vae = data / "mine" / "vae" / "diffusion_pytorch_model.safetensors"
        assert vae.stat().st_nlink == 2  # the hub's cache has the same bytes

    @pytest.mark.parametrize("kind", ["resolve", "blob"])
    def test_the_address_of_a_file_is_understood(self, invoke: Invoke, served: FakeHub, kind: str) -> None:
        invoke("pull", REPO, "--parts", "vae,text_encoder,text_encoder_2")
        address = f"https://huggingface.co/{REPO}/{kind}/main/mine.safetensors?download=true"
        assert invoke("pull", address, "--as", "mine", "--base", REPO).code == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([f"{REPO}:mine.safetensors"], "--as NAME"),
            ([f"{REPO}:mine.ckpt", "--as", "mine"], "pickled weights"),
            ([f"{REPO}:mine.safetensor", "--as", "mine"], "no file of weights"),
            ([f"{REPO}:min.safetensors", "--as", "mine"], "did you mean 'mine.safetensors'?"),
            ([f"{REPO}", "--as", "mine"], "pull OWNER/NAME:FILE.safetensors"),
            ([f"{REPO}", "--parts", "vea"], "is no part of studio/shapes"),
            (["https://example.com/mine.safetensors", "--as", "mine"], "only files of the hub"),
        ],
    )
    def test_what_is_no_single_file_is_refused_before_anything_is_fetched(
        self, invoke: Invoke, served: FakeHub, arguments: list[str], message: str
    ) -> None:
        refused = invoke("pull", *arguments)
        assert (refused.code, served.fetched()) == (2, [])
        assert message in refused.err

    def test_a_license_that_restricts_uses_is_shown_and_accepted_before_a_download(
        self, invoke: Invoke, served: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = known_model(DEV)
        assert known is not None
        served.repo_id, served.commit = DEV, str(known.commit)
        refused = invoke("pull", "flux-dev", "--parts", "vae")
        assert (refused.code, served.fetched()) == (2, [])
        assert "license: FLUX.1 [dev] Non-Commercial License" in refused.err
        assert "give --yes to accept" in refused.err
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("typer.confirm", lambda question, **_: "FLUX.1 [dev]" not in question)
        assert (invoke("pull", "flux-dev", "--parts", "vae").code, served.fetched()) == (1, [])
        assert invoke("pull", "flux-dev", "--parts", "vae", "--yes").code == 0


def test_the_list_of_known_models_says_license_size_and_consent(invoke: Invoke) -> None:
    listed = invoke("models", "--known")
    assert "FLUX.1 [dev] Non-Commercial License  about 33.7 GB  yes" in listed.out
    entries = json.loads(invoke("list", "--known", "--json").out)
    assert [entry["name"] for entry in entries] == [model.name for model in KNOWN_MODELS]
    assert len(entries) >= 30


def test_no_two_known_models_share_a_name() -> None:
    names = [name for model in KNOWN_MODELS for name in (*model.names, model.hub_id)]
    assert len(names) == len(set(names))

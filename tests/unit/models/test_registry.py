"""The registry knows every family and loads none before it is needed."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.family import PipelineFamily
from diffuserve.models.registry import ENTRY_POINT_GROUP, known_families, load_family, read_offer, read_spec
from support.fake_family.install import install_fake_family, write_fake_model


def loaded_modules(statement: str) -> list[str]:
    """The heavy modules that a fresh interpreter has after `statement`."""
    code = (
        f"import sys; {statement};"
        "print(*(name for name in ('torch', 'diffusers', 'transformers') if name in sys.modules))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_importing_the_registry_loads_no_torch_and_no_family() -> None:
    assert loaded_modules("import diffuserve.models.registry") == []
    statement = (
        "import diffuserve.models.registry;"
        "assert not any(name.startswith('diffuserve.models.families.flux') for name in sys.modules)"
    )
    assert loaded_modules(statement) == []


def test_reading_an_offer_loads_no_torch() -> None:
    statement = "from diffuserve.models.registry import read_offer; read_offer('tiny-flux')"
    assert loaded_modules(statement) == []


@pytest.mark.parametrize("name", known_families())
def test_every_family_fulfils_the_contract(name: str) -> None:
    assert isinstance(load_family(known_families()[name]), PipelineFamily)


def test_a_step_of_flux_is_priced_near_the_time_of_its_operations() -> None:
    spec, fit = read_offer("tiny-flux")
    assert spec.guidance_passes == 1
    assert fit.step[0] + 1_280 * fit.step[1] == pytest.approx(24 / 400, rel=0.5)


@pytest.fixture
def fake_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))


@pytest.mark.usefixtures("fake_family")
def test_a_family_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    spec = read_spec(str(write_fake_model(tmp_path / "clouds", width=96)))
    assert (spec.family, spec.name, spec.width, spec.guidance_passes) == ("fake", "clouds", 96, 2)


@pytest.mark.usefixtures("fake_family")
def test_a_settings_file_cannot_change_the_architecture_of_any_family(tmp_path: Path) -> None:
    folder = write_fake_model(tmp_path / "clouds", guidance_passes=1)
    with pytest.raises(InvalidModel, match="unknown setting 'guidance_passes'"):
        read_spec(str(folder))


@pytest.mark.usefixtures("fake_family")
@pytest.mark.parametrize("prompts", [["a cloud", 7], "a cloud", ["a" * 201], ["a\0"], [*map(str, range(30))]])
def test_examples_are_a_few_short_texts(tmp_path: Path, prompts: object) -> None:
    folder = write_fake_model(tmp_path / "clouds", example_prompts=prompts)
    with pytest.raises(InvalidModel, match="example_prompts"):
        read_spec(str(folder))


def test_another_package_cannot_replace_a_family_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path, pipeline_class="FluxPipeline")))
    assert known_families()["FluxPipeline"].value.startswith("diffuserve.")


def test_an_entry_point_that_is_no_family_is_refused() -> None:
    with pytest.raises(InvalidModel, match="'os:sep': not a PipelineFamily"):
        load_family(EntryPoint("OddPipeline", "os:sep", ENTRY_POINT_GROUP))

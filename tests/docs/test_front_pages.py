"""README, ARCHITECTURE, the start page and the changelog: short, and held to the code."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diffuserve.cli.commands import COMMANDS
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.known_models import KNOWN_MODELS
from diffuserve.models.folders.names import ALIASES
from diffuserve.models.registry import known_families, read_spec

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "diffuserve"
MAX_LINES = {"README.md": 90, "ARCHITECTURE.md": 150, "CHANGELOG.md": 70}
MAX_COLUMNS = 110  # of prose; a row of a table is as wide as it is
FAMILIES = {
    "flux": {"FLUX.1"},
    "flux2": {"FLUX.2"},
    "qwen_image": {"Qwen-Image"},
    "stable_diffusion": {"SDXL", "Stable Diffusion 1 and 2"},
    "wan": {"Wan 2.1 and 2.2"},
    "z_image": {"Z-Image"},
}
"""What people call the models of each family's folder."""
_LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
_CODE = re.compile(r"^```bash\n.*?^```|(?<=`)[^`\n]+(?=`)", re.MULTILINE | re.DOTALL)
_DRAWN = re.compile(r"^(?P<indent> *)(?P<name>[\w./]+) {2,}\S", re.MULTILINE)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text(name), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} has no section {heading!r}"
    return found[1]


def rows(table: str) -> list[list[str]]:
    """Return the cells of a section's table, without its heading."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def project() -> dict[str, Any]:
    return tomllib.loads(text("pyproject.toml"))


@pytest.mark.parametrize("name", MAX_LINES)
def test_front_pages_stay_short_and_narrow(name: str) -> None:
    lines = text(name).splitlines()
    assert len(lines) <= MAX_LINES[name]
    assert [line for line in lines if len(line) > MAX_COLUMNS and not line.startswith("|")] == []


def test_a_command_stands_before_any_picture() -> None:
    page = text("README.md")
    assert 0 < page.index("```bash") < page.index("![")


def test_the_table_of_models_is_what_there_is() -> None:
    table = rows(section("README.md", "Models"))
    named = {name for _, names, *_ in table for name in re.findall(r"`([^`]+)`", names)}
    assert bundled_models().keys() <= named <= {*ALIASES, *bundled_models()}
    built_in = [each.module for each in known_families().values() if each.module.startswith("diffuserve.")]
    families = {module.split(".")[3] for module in built_in}
    titles = {row[0] for row in table if not row[0].startswith("bundled")}
    assert {family: FAMILIES.get(family) for family in families} == FAMILIES
    assert titles == set.union(*FAMILIES.values())


@pytest.mark.parametrize("name", bundled_models())
def test_the_table_of_models_says_what_bundled_ones_can(name: str) -> None:
    spec = read_spec(name)
    [(_, _, weights, _, edits, clips)] = [
        row for row in rows(section("README.md", "Models")) if f"`{name}`" in row[1]
    ]
    size = sum(file.stat().st_size for file in bundled_models()[name].rglob("*.safetensors"))
    assert weights == f"{size / 1e6:.0f} MB"
    assert ("from an image" in edits, "masks" in edits) == (spec.has_strength, spec.has_mask)
    assert ("from text" in clips, "first frame" in clips) == (spec.max_frames > 1, spec.has_first_frame)


def test_the_sizes_of_known_models_are_those_that_commands_tell() -> None:
    gigabytes = {name: model.gigabytes for model in KNOWN_MODELS for name in model.names}
    for _, names, weights, *_ in rows(section("README.md", "Models")):
        sizes = [size for name in re.findall(r"`([^`]+)`", names) if (size := gigabytes.get(name))]
        least, most = f"{min(sizes, default=0):.2g}", f"{max(sizes, default=0):.3g}"
        assert not sizes or weights.removeprefix("from ") in (f"{least} GB", f"{least} to {most} GB"), names
    assert f"`diffuserve pull sd-1.5` ({gigabytes['sd-1.5']} GB)" in text("README.md")


def test_every_figure_is_in_its_result_file() -> None:
    table = rows(section("README.md", "Figures"))
    assert len({row[0] for row in table}) == len(table) > 0
    for _, ours, peer, result in table:
        [path] = _LINK.findall(result)
        measured = set(re.findall(r"\d[\d.]*", text(path)))
        assert set(re.findall(r"\d[\d.]*", ours + peer)) - measured == set(), path


@pytest.mark.parametrize("name", ["README.md", "docs/install.md"])
def test_commands_and_targets_that_front_pages_name_exist(name: str) -> None:
    code = "\n".join(_CODE.findall(text(name)))
    commands = set(re.findall(r"(?:^|& )diffuserve ([a-z]+)", code, re.MULTILINE))
    targets = set(re.findall(r"(?:^|& )make ([\w-]+)", code, re.MULTILINE))
    assert commands - {command.name for command in COMMANDS} == set()
    assert targets - set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE)) == set()
    assert commands
    assert targets


def test_extras_that_documents_name_exist() -> None:
    named = {
        extra.strip()
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for extras in re.findall(r"\bdiffuserve\[([a-z, -]+)\]", path.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert "engine" in named
    assert named - set(project()["project"]["optional-dependencies"]) == set()


def drawn() -> Iterator[tuple[bool, str]]:
    """Yield what ARCHITECTURE draws of the folders: whether it is in the package, and its name."""
    for line in _DRAWN.finditer(section("ARCHITECTURE.md", "Layers and folders")):
        yield bool(line["indent"]), line["name"]


def test_the_drawn_layers_are_those_that_are_checked() -> None:
    contracts = project()["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == ["diffuserve"]]
    checked = [name for layer in layers for name in layer.split(" | ")]
    names = [name for inside, name in drawn() if inside]
    assert [Path(name).stem for name in names] == checked
    assert [name for name in names if not (PACKAGE / name).exists()] == []


def test_every_folder_of_the_repository_is_drawn() -> None:
    command = ["git", "ls-tree", "-d", "--name-only", "HEAD"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name for name in tracked if not name.startswith(".")} - {"src"}
    assert {name.rstrip("/") for inside, name in drawn() if not inside} == folders


def test_tests_of_invariants_exist_and_all_eight_are_named() -> None:
    invariants = section("ARCHITECTURE.md", "Invariants")
    numbers = re.findall(r"\*\*INV-(\d)\*\*.*?\(tests/[\w/]+\.py\)", invariants, re.DOTALL)
    assert numbers == [str(number) for number in range(1, 9)]


def reachable(start: str) -> set[Path]:
    """Return the pages that a page links to."""
    page = ROOT / start
    return {(page.parent / target).resolve() for target in _LINK.findall(text(start)) if "://" not in target}


def test_every_document_is_linked_from_the_start_page() -> None:
    linked = reachable("docs/index.md") | reachable("docs/adr/index.md") | {ROOT / "docs" / "index.md"}
    project_pages = {path for path in ROOT.glob("*.md") if path.name != "README.md"}
    pages = {*(ROOT / "docs").rglob("*.md"), *project_pages, *ROOT.glob("benchmarks/*.md")}
    assert {path.relative_to(ROOT).as_posix() for path in pages - linked} == set()

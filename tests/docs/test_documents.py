"""The documents say what is there, and what they show runs."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import diffuserve
from benchmarks.__main__ import BENCHMARKS
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.tenant import DEFAULT_PLANS, Plan
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.outputs import GenerationResult, StepOutput, Timings

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
MAX_SOURCE_LINES = 400
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
FORBIDDEN = re.compile(
    r"issue #|\b(this|earlier|previous) session\b|\bclaude\b|\bLLM\b|(?<!Wan-)(?<!Stability )(?<!fal-)\bAI\b",
    re.IGNORECASE,
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def prose(path: Path) -> str:
    """Return a document's text without its code blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def python_source(path: Path) -> str:
    """The blocks that run, each on the lines it has in the document, so that failures point there."""
    text = path.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in FENCE.finditer(text):
        if block["info"].strip() == "python":
            first = text.count("\n", 0, block.start("body"))
            body = block["body"].splitlines()
            lines[first : first + len(body)] = body
    return "\n".join(lines)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one core per engine: on a busy machine, threads that share small operations mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_PAGES_WITH_SERVER = ("tutorial-http.md", "how-to/use-the-python-client.md")
WITH_SERVER = [ROOT / "docs" / name for name in _PAGES_WITH_SERVER]  # test_http_tutorial.py runs them
WITH_PYTHON = [path for path in DOCUMENTS if python_source(path).strip() and path not in WITH_SERVER]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_every_python_block_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(python_source(path), str(path), "exec"), {"__name__": "document"})


def test_blocks_are_closed_and_marked() -> None:
    kinds = {"", "bash", "bash no-run", "json", "python", "python no-run", "text", "ts", "yaml"}
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        blocks = list(FENCE.finditer(text))
        assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks), name_of(path)
        assert {block["info"].strip() for block in blocks} <= kinds, name_of(path)
        for block in blocks:
            if block["info"].strip() == "json":
                json.loads(block["body"])


def test_relative_links_resolve() -> None:
    links = [(path, link["target"]) for path in DOCUMENTS for link in LINK.finditer(prose(path))]
    assert [f"{name_of(path)}: {target}" for path, target in links if not is_there(path, target)] == []


def is_there(path: Path, target: str) -> bool:
    """Return whether a link's target is a web page, or a file, with a heading of that name."""
    file, _, anchor = target.partition("#")
    if "://" in file:
        return True
    found = (path.parent / file).resolve() if file else path
    return found.exists() and (not anchor or anchor in anchors(found))


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a document, as forges name them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_benchmark_has_a_name_and_a_row() -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `make (?:bench NAME=)?([\w-]+)` \|", readme, re.MULTILINE)
    assert set(rows) - {"chaos-long"} == set(BENCHMARKS)
    described = {
        ".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts)
        for path in (ROOT / "benchmarks").rglob("*.py")
        if "python -m benchmarks " in path.read_text(encoding="utf-8") and not path.name.startswith("__")
    }
    assert described == set(BENCHMARKS.values())


def test_documents_speak_of_the_project_alone() -> None:
    found = [(name_of(path), FORBIDDEN.findall(path.read_text(encoding="utf-8"))) for path in DOCUMENTS]
    assert [(name, words) for name, words in found if words] == []


def test_no_source_file_is_long() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "src").rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > MAX_SOURCE_LINES} == {}


def test_decisions_have_the_four_parts() -> None:
    decisions = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert [path.name[:4] for path in decisions] == [f"{i:04}" for i in range(1, len(decisions) + 1)]
    for path in decisions:
        headings = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Status", "Context", "Decision", "Consequences"], path.name


def test_the_public_names_are_exact() -> None:
    assert diffuserve.__all__ == sorted(diffuserve.__all__)
    assert set(diffuserve.__all__) == {*diffuserve._HOMES, "__version__"}
    for name in diffuserve.__all__:
        assert getattr(diffuserve, name) is not None
    assert dir(diffuserve) == diffuserve.__all__
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(diffuserve, "no_such_name")  # noqa: B009 (as an attribute it would not type-check)


def test_public_names_are_documented() -> None:
    assert undocumented(diffuserve.__all__, "engine.md") == set()


@pytest.mark.parametrize(
    "kind", [EngineConfig, GenerationParams, ModelSpec, StepOutput, GenerationResult, Timings]
)
def test_every_public_field_is_documented(kind: Any) -> None:
    assert undocumented([field.name for field in fields(kind)], "engine.md", kind.__name__) == set()


def test_public_methods_of_the_engine_are_documented() -> None:
    public = {name for name in vars(diffuserve.Engine) if not name.startswith("_")}
    page = section("engine.md", "Engine")
    assert {name for name in public if not re.search(rf"`(await |Engine\.)?{name}\b", page)} == set()


def test_the_settings_file_of_a_model_is_documented() -> None:
    guide = (ROOT / "docs" / "how-to" / "load-your-own-model.md").read_text(encoding="utf-8")
    names = [*(field.name for field in fields(ModelSpec)), "lowercase_prompt", "preview", "factors", "bias"]
    assert {name for name in names if f"`{name}`" not in guide} == set()


def test_every_route_is_documented(tmp_path: Path) -> None:
    from diffuserve.api.app import create_app
    from diffuserve.api.config import ApiConfig
    from diffuserve.events.memory import MemoryEventBus
    from diffuserve.jobs.config import StoreConfig
    from diffuserve.jobs.store import JobStore
    from diffuserve.storage.local import LocalArtifactStore

    bus = MemoryEventBus()
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", bus, StoreConfig())
    paths = create_app(store, LocalArtifactStore(tmp_path), bus, ApiConfig()).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    page = (REFERENCE / "http-api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `((?!WS )[A-Z]+ /[^`]*)` \|", page, re.MULTILINE))
    assert documented == routes


def test_every_plan_is_documented() -> None:
    assert undocumented(list(DEFAULT_PLANS), "plans.md") == set()
    assert undocumented([field.name for field in fields(Plan) if field.name != "name"], "plans.md") == set()


def section(page: str, heading: str) -> str:
    """Return the text from the heading that begins with `heading` to the next heading."""
    parts = re.split(r"^#+ ", (REFERENCE / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [part for part in parts if re.match(re.escape(heading) + r"(?![\w-]| [a-z])", part)]
    assert found, f"{page} has no section {heading!r}"
    return found[-1]


def undocumented(names: list[str], page: str, heading: str | None = None) -> set[str]:
    text = section(page, heading) if heading else (REFERENCE / page).read_text(encoding="utf-8")
    return {name for name in names if f"`{name}`" not in text}

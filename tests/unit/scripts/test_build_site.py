"""The copy of the documents that becomes the site."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "scripts" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "docs/index.md": "# Home\n\n[code](../src/x.py)\n\n"
        "## Use it\n\n- [a](how-to/a.md): [files](../files/)\n\n"
        "## Know it\n\n[S](../SECURITY.md)\n[why](adr/index.md)\n",
        "SECURITY.md": "# Security\n",
        "files/c.md": "# `C`\n",
        "src/x.py": "",
        "docs/adr/index.md": "# Why\n\n[b](0001-b.md)\n",
        "docs/adr/0001-b.md": "# 1. `B`\n",
        "docs/how-to/a.md": "# A\n\n[home](../index.md#why) ![p](../p.png)\n\n"
        "```python no-run\n[no](link)\n```\n",
        "docs/p.png": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_documents_link_to_comes_along(site: ModuleType, project: Path) -> None:
    found = site.collect(project)
    documents = {"docs/index.md", "docs/how-to/a.md", "docs/adr/index.md", "docs/adr/0001-b.md"}
    assert set(found.pages) == documents | {"SECURITY.md", "files/c.md"}
    assert (set(found.assets), found.folders) == ({"src/x.py", "docs/p.png"}, ("files",))


def test_links_become_those_of_the_site(site: ModuleType, project: Path) -> None:
    assert "[code](src/x.py)" in site.render(project, "docs/index.md")
    assert "[files](files/index.md)" in site.render(project, "docs/index.md")
    rendered = site.render(project, "docs/how-to/a.md")
    assert "[home](../index.md#why) ![p](../p.png)" in rendered
    assert "```python\n[no](link)\n```" in rendered
    assert "[C](c.md)" in site.render_folder(project, "files")


def test_the_start_page_gives_the_navigation(site: ModuleType, project: Path) -> None:
    assert site.section_pages(project) == {
        "Use it": ["docs/how-to/a.md"],
        "Know it": ["SECURITY.md", "docs/adr/index.md"],
        "Decisions": ["docs/adr/0001-b.md"],
    }


def test_a_link_that_leads_nowhere_is_named(site: ModuleType, project: Path) -> None:
    (project / "SECURITY.md").write_text("# S\n\n[gone](docs/gone.md)\n")
    with pytest.raises(SystemExit, match=r"docs/gone\.md"):
        site.collect(project)


def test_the_navigation_has_every_document_once(site: ModuleType) -> None:
    sections = tomllib.loads(site.configuration(ROOT, "1.2"))["project"]["nav"][1:]
    listed = [page for section in sections for pages in section.values() for page in pages]
    places = [place for page in listed for place in page.values()]
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - {site.HOME}
    projects = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"}
    assert sorted(places) == sorted(set(places))
    assert {site.site_path(name) for name in documents | projects} - set(places) == set()


def test_a_page_that_loads_from_another_site_is_refused(site: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "assets" / "javascripts").mkdir(parents=True)
    page = tmp_path / "index.html"
    page.write_text('<script src="https://unpkg.com/iframe-worker/shim"></script>')
    site.make_local(tmp_path)
    assert 'src="assets/javascripts/iframe-worker.js"' in page.read_text()
    page.write_text('<link href="https://fonts.example/x.css">')
    with pytest.raises(SystemExit, match=r"fonts\.example"):
        site.make_local(tmp_path)


def test_versions_stay_beside_one_another_the_newest_first(site: ModuleType, tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    for version in ("0.9", "0.10", "0.9"):
        site.publish(built, tmp_path / "out", version)
    assert '"0.10", "title": "0.10"' in (tmp_path / "out" / "versions.json").read_text()
    assert "url=0.10/" in (tmp_path / "out" / "index.html").read_text()
    assert (tmp_path / "out" / "0.9").is_dir()

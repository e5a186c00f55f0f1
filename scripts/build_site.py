"""Builds the documents into a site of HTML pages that can be searched without a server or a network.

The site is built by Zensical from a copy of the documents in `build/site`, in which links have been turned
into the site's own: the documents themselves keep links that work on a code host. Each version has a folder
in `out/site`, beside those of other versions that are there. Any warning is an error.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from diffuserve.version import __version__

ROOT = Path(__file__).parents[1]
SOURCE, OUTPUT = ROOT / "build" / "site", ROOT / "out" / "site"
HOME = "docs/index.md"
DECISIONS = "docs/adr/index.md"

_FENCE = re.compile(r"^(?P<fence>```)(?P<info>[^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)(?P<text>!?\[(?:[^\[\]\n]|\[[^\]\n]*\])*\])\((?P<target>[^)\s]+)\)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_VERSION = re.compile(r"\d+(\.\d+)*")
_FOREIGN = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?(https?://[^"\s>]+)""")

# Lets the search run from `file://`, where browsers start no workers. Zensical's pages load it from a CDN.
_STYLE = Path(__file__).parent / "site" / "tables.css"
_SHIM, _SHIM_URL = Path(__file__).parent / "site" / "iframe-worker.js", "https://unpkg.com/iframe-worker/shim"


@dataclass(frozen=True)
class Site:
    """Files of a site by their path in the repository, and the text of generated ones by path in the site."""

    pages: tuple[str, ...]
    assets: tuple[str, ...]
    folders: tuple[str, ...]


def collect(root: Path) -> Site:
    """Return everything in the repository that links lead to from the start page."""
    waiting = [HOME]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _linked(root, name)
    folders = {name for name in found if (root / name).is_dir()}
    pages = {name for name in found - folders if name.endswith(".md")}
    return Site(tuple(sorted(pages)), tuple(sorted(found - folders - pages)), tuple(sorted(folders)))


def section_pages(root: Path) -> dict[str, list[str]]:
    """Return the documents that the start page links to by section, and those of the list of decisions."""
    sections = {
        heading: [page for page in _linked_by(root, HOME, body) if page.endswith(".md")]
        for heading, body in _SECTION.findall(_text(root, HOME))
    }
    sections["Decisions"] = sorted(_linked(root, DECISIONS))
    return sections


def title_of(path: Path) -> str:
    """Return the document's first heading, without code marks."""
    found = _TITLE.search(path.read_text(encoding="utf-8"))
    return found[1].replace("`", "") if found else path.stem


def site_path(name: str) -> str:
    """Return where the site has a file of the repository: documents at the top, all else as it is."""
    return name.removeprefix("docs/")


def render(root: Path, name: str) -> str:
    """Return a document's text with the site's links, and with fences that have a language alone."""
    text = _text(root, name)
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_relinked(root, name, text[end : fence.start()]), _plain_fence(fence)]
        end = fence.end()
    return "".join([*parts, _relinked(root, name, text[end:])])


def render_folder(root: Path, name: str) -> str:
    """Return a page that lists the documents of a folder, for links to the folder."""
    pages = sorted((root / name).glob("*.md"))
    lines = [f"- [{title_of(page)}]({page.name})" for page in pages]
    return "\n".join([f"# {name}", "", *lines, ""])


def _plain_fence(fence: re.Match[str]) -> str:
    language = fence["info"].split()[:1]
    return fence[0].replace(f"```{fence['info']}", f"```{''.join(language)}", 1)


def _relinked(root: Path, name: str, prose: str) -> str:
    def replace(link: re.Match[str]) -> str:
        target, anchor = _split(link["target"])
        resolved = _resolve(root, name, target)
        if resolved is None:
            return link[0]
        return f"{link['text']}({_relative(root, name, resolved)}{anchor})"

    return _LINK.sub(replace, prose)


def _relative(root: Path, name: str, target: str) -> str:
    place = f"{site_path(target)}/index.md" if (root / target).is_dir() else site_path(target)
    return os.path.relpath(place, PurePosixPath(site_path(name)).parent)


def _linked(root: Path, name: str) -> Iterator[str]:
    """Yield what a document or a folder's page links to inside the repository."""
    path = root / name
    if path.is_dir():
        yield from (_name(root, page) for page in path.glob("*.md"))
    elif path.suffix == ".md":
        yield from _linked_by(root, name, _text(root, name))


def _linked_by(root: Path, name: str, text: str) -> Iterator[str]:
    """Yield what a part of a document's text links to inside the repository."""
    for link in _LINK.finditer(_FENCE.sub("", text)):
        resolved = _resolve(root, name, _split(link["target"])[0])
        if resolved is not None:
            yield resolved


def _text(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def _split(target: str) -> tuple[str, str]:
    path, mark, anchor = target.partition("#")
    return path, mark + anchor


def _resolve(root: Path, name: str, target: str) -> str | None:
    """Return the linked file's path in the repository; `None` for other sites and the same page."""
    if not target or "://" in target or target.startswith("mailto:"):
        return None
    path = ((root / name).parent / target).resolve()
    if not path.exists():
        raise SystemExit(f"{name}: the link {target} leads nowhere")
    return _name(root, path)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def write_source(root: Path, source: Path, version: str) -> None:
    """Write what Zensical reads: the pages, the files beside them and the configuration."""
    site = collect(root)
    shutil.rmtree(source, ignore_errors=True)
    pages = source / "pages"
    for names, rendered in ((site.pages, render), (site.folders, render_folder)):
        _write_pages(root, pages, names, rendered)
    for name in site.assets:
        target = pages / site_path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target)
    shutil.copy(_STYLE, pages)
    (source / "zensical.toml").write_text(configuration(root, version), encoding="utf-8")


def _write_pages(
    root: Path, pages: Path, names: tuple[str, ...], rendered: Callable[[Path, str], str]
) -> None:
    for name in names:
        place = site_path(name)
        target = pages / (place if place.endswith(".md") else f"{place}/index.md")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rendered(root, name), encoding="utf-8")


def configuration(root: Path, version: str) -> str:
    """Return Zensical's configuration: no font, script or image of another site, and search from `file://`."""
    nav = ",\n".join(_nav_entry(root, section, names) for section, names in section_pages(root).items())
    return f"""[project]
site_name = "diffuserve {version}"
site_description = "Serve diffusion models at high throughput"
docs_dir = "pages"
site_dir = "html"
use_directory_urls = false
extra_css = ["{_STYLE.name}"]
nav = [
  {{ "Home" = "index.md" }},
{nav}
]

[project.theme]
font = false
features = ["navigation.tabs", "navigation.top", "content.code.copy", "search.highlight", "toc.follow"]

[[project.theme.palette]]
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.plugins.search]

[project.plugins.offline]

[project.extra.version]
provider = "mike"

[project.markdown_extensions.admonition]
[project.markdown_extensions.tables]
[project.markdown_extensions.sane_lists]
[project.markdown_extensions.pymdownx.superfences]
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
"""


def _nav_entry(root: Path, section: str, names: list[str]) -> str:
    entries = [
        f"    {{ {json.dumps(title_of(root / name))} = {json.dumps(site_path(name))} }}" for name in names
    ]
    return f"  {{ {json.dumps(section)} = [\n" + ",\n".join(entries) + "\n  ] }"


def make_local(built: Path) -> None:
    """Let the pages load nothing from other sites. Raise `SystemExit` for a page that still does."""
    shutil.copy(_SHIM, built / "assets" / "javascripts")
    for page in built.rglob("*.html"):
        shim = os.path.relpath(built / "assets" / "javascripts" / _SHIM.name, page.parent)
        text = page.read_text(encoding="utf-8").replace(_SHIM_URL, shim)
        if foreign := _FOREIGN.search(text):
            raise SystemExit(f"{page}: loads {foreign[1]} from another site")
        page.write_text(text, encoding="utf-8")


def publish(built: Path, output: Path, version: str) -> None:
    """Put a built site into its version's folder, and offer all versions, newest first."""
    shutil.rmtree(output / version, ignore_errors=True)
    shutil.copytree(built, output / version)
    folders = [path.name for path in output.iterdir() if path.is_dir() and _VERSION.match(path.name)]
    versions = sorted(folders, key=_order, reverse=True)
    listed = [{"version": version, "title": version, "aliases": []} for version in versions]
    (output / "versions.json").write_text(json.dumps(listed), encoding="utf-8")
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
    (output / "index.html").write_text(page, encoding="utf-8")


def _order(version: str) -> tuple[int, ...]:
    found = _VERSION.match(version)
    assert found is not None
    return tuple(map(int, found[0].split(".")))


def main() -> None:
    """Build the site, and end with Zensical's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", default=__version__, help="Name of the version's folder.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="Folder of all versions.")
    given = parser.parse_args()
    write_source(ROOT, SOURCE, given.version)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    build = subprocess.run([*command, "--config-file", SOURCE / "zensical.toml"], check=False)
    if build.returncode:
        raise SystemExit("the documents have the issues above")
    make_local(SOURCE / "html")
    publish(SOURCE / "html", given.output, given.version)
    print(given.output / "index.html")


if __name__ == "__main__":
    main()

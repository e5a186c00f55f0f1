"""Messages about a path that is no model folder: they say what it is, and what to give instead."""

from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

INDEX_FILE = "model_index.json"
INDEX_FILES = (INDEX_FILE, "modular_model_index.json")
"""What names a folder's pipeline and its components, the first that is there."""
_SINGLE = (
    "a single file of weights; make a model of it once with `diffuserve import FILE --as NAME`, and give "
    "--model NAME"
)
_PICKLED = (
    "pickled weights, which can run code and are never opened; look for the same model as .safetensors, or "
    "give --model with a folder that has safetensors files"
)
_SINGLE_FILES = {
    ".safetensors": _SINGLE,
    ".gguf": _SINGLE,
    **dict.fromkeys((".ckpt", ".bin", ".pt", ".pth", ".pkl"), _PICKLED),
}
_MAX_ENTRIES = 2_000  # entries of a folder that are searched
_MAX_SHOWN = 5


def existing(name: str) -> Path | None:
    """Return the file or folder of this name, `~` expanded; `None` if there is none."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # too long for a path; the home directory of an unknown user
        return None


def looks_like_a_path(name: str) -> bool:
    """Return whether a name means a place on this machine, and neither a bundled model nor a hub id.

    `models/flux` could be a hub id; where there is a folder `models`, it is a path.
    """
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        return True
    if Path(name).suffix.lower() in _SINGLE_FILES:
        return True
    first, slash, _ = name.partition("/")
    return bool(slash) and "@" not in name and existing(first) is not None


def explain_file(path: Path) -> str:
    """Return what a file is that was given as a model, and what to give."""
    if model := next((parent for parent in islice(path.parents, 2) if is_model(parent)), None):
        return f"{path}: a file of a model; give the model's folder, --model {model}"
    kind = _SINGLE_FILES.get(path.suffix.lower(), "a file; a model is a folder in diffusers' format")
    return f"{path}: {kind}"


def explain_missing(name: str) -> str:
    """Return the existing folders nearest to a path that does not exist."""
    try:
        path = Path(name).expanduser()
        nearest = next(parent for parent in path.parents if parent.is_dir())
    except (OSError, RuntimeError, StopIteration):
        return f"no model {name[:200]!r}: not a folder"
    missing = path.parts[len(nearest.parts)] if nearest != Path() else path.parts[0]
    matches = get_close_matches(missing, [entry.name for entry in _entries(nearest)], n=3, cutoff=0.6)
    shown = f"no model {name!r}: not a folder"
    if matches:
        return f"{shown}; did you mean {' or '.join(str(nearest / match) for match in matches)}?"
    models = [entry.name for entry in _entries(nearest) if is_model(entry)][:_MAX_SHOWN]
    holds = f"which has the models {', '.join(models)}" if models else "which has no model of a similar name"
    return f"{shown}; the nearest folder that exists is {nearest.absolute()}, {holds}"


def explain_folder(path: Path) -> str:
    """Return why a folder without an index is no model, and where there is one."""
    if is_model(path.parent):
        return f"{path}: a part of a model; give the model's folder, --model {path.parent}"
    found = [entry for entry in _entries(path) if is_model(entry)]
    found += [entry for entry in islice(path.glob("snapshots/*"), _MAX_ENTRIES) if is_model(entry)]
    if found:
        given = " or ".join(f"--model {entry}" for entry in found[:_MAX_SHOWN])
        return f"{path}: no {INDEX_FILE}; did you mean {given}?"
    reason = f"{path}: no {INDEX_FILE}; is this a folder in diffusers' format?"
    singles = [entry for entry in _entries(path) if entry.suffix.lower() in _SINGLE_FILES]
    return f"{reason} {singles[0].name} is {_SINGLE_FILES[singles[0].suffix.lower()]}" if singles else reason


def is_model(path: Path) -> bool:
    """Return whether a folder has an index of components."""
    return any((path / name).is_file() for name in INDEX_FILES)


def _entries(folder: Path) -> list[Path]:
    def found() -> Iterator[Path]:
        try:
            yield from folder.iterdir()
        except OSError:
            return

    return sorted(islice(found(), _MAX_ENTRIES))

"""Adapters that options name by their files: each gets a name, for which requests ask."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.adapter_use import ADAPTER_NAME, MAX_ADAPTER_NAME_CHARACTERS

_SUFFIX: Final = ".safetensors"
_PICKLES: Final = (".pt", ".pth", ".bin", ".ckpt")  # refused by those who open files
_OF_TRAINERS: Final = ("pytorch_lora_weights", "adapter_model")
"""What trainers name their files: such a file is told by its folder."""
_ELSEWHERE = re.compile(r"[a-z0-9]+://")
_NAMED: Final = "--adapter-files NAME=FILE names a file"
_MAX_TOLD = 5


def refuse_files(values: Sequence[str]) -> None:
    """Raise `InvalidParams` for an adapter that is given by its file to a server, which knows names alone."""
    for adapter, _ in map(split_weight, values):
        if is_file(adapter):
            remedy = "is a file, and servers know adapters by names; `diffuserve adapters push` gives it one"
            raise InvalidParams("adapters", adapter, remedy)


def is_file(value: str) -> bool:
    """Return whether an adapter is given by its file or folder, and not by a name."""
    return "/" in value or value.lower().endswith((_SUFFIX, *_PICKLES))


def split_weight(value: str) -> tuple[str, str]:
    """Return what stands before the weight of `ADAPTER[:WEIGHT]`, and `:WEIGHT` or nothing."""
    adapter, separator, weight = value.rpartition(":")
    try:
        float(weight)
    except ValueError:
        return value, ""
    return (adapter, f":{weight}") if separator else (value, "")


def named_file(value: str) -> tuple[str, str]:
    """Return the name and the file of an adapter that is given by its file, or by a folder with one.

    The name is that of the file, or of its folder where a trainer named the file. Raise `InvalidParams`.
    """
    if _ELSEWHERE.match(value):
        raise InvalidParams("adapters", value, "is not on this machine; download it, and give its path")
    path = Path(value).expanduser()
    file = _only_file(path) if path.is_dir() else path
    if not file.is_file():
        raise InvalidParams("adapters", value, f"there is no such file; give that of a LoRA, {_SUFFIX}")
    told = file.absolute().parent.name if file.stem in _OF_TRAINERS else file.stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", told).lstrip("._-")[:MAX_ADAPTER_NAME_CHARACTERS]
    if not ADAPTER_NAME.fullmatch(name):
        raise InvalidParams("adapters", value, f"has no name of its own; {_NAMED}")
    return name, str(file)


def adapter_files(text: str) -> Mapping[str, Any]:
    """Return files by name, of JSON, of `NAME=FILE,NAME=FILE`, or of files alone, which need no names.

    Raise `ValueError`.
    """
    if text.lstrip().startswith("{"):
        found: Mapping[str, Any] = json.loads(text)
        return found
    return dict(_pair(*part.strip().split("=", 1)) for part in text.split(","))


def with_files(values: Sequence[str], files: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return adapters by names alone, and the files of those names beside `files`. Raise `InvalidParams`."""
    named, uses = dict(files), []
    for value in values:
        adapter, weight = split_weight(value)
        if is_file(adapter):
            adapter, file = named_file(adapter)
            if named.setdefault(adapter, file) != file:
                raise InvalidParams("adapters", value, f"{named[adapter]} is {adapter!r} already; {_NAMED}")
        uses.append(adapter + weight)
    return uses, named


def _pair(name: str, file: str | None = None) -> tuple[str, str]:
    """Return what is said of one file; what has a name may be on another machine."""
    if file is None:
        return named_file(name)
    return name, str(_only_file(Path(file)) if Path(file).is_dir() else file)


def _only_file(folder: Path) -> Path:
    """Return the file of a folder that holds one adapter. Raise `InvalidParams` for none or several."""
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    usual = [file for file in files if file.stem in _OF_TRAINERS]
    if len(files) != 1 and len(usual) != 1:
        listed = ", ".join(file.name for file in files[:_MAX_TOLD]) or "none"
        remedy = f"has {len(files)} {_SUFFIX} files ({listed}); give the path of one"
        raise InvalidParams("adapters", str(folder), remedy)
    return (usual or files)[0]

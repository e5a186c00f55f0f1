"""The adapters that an engine can load: files that have names here, and files that requests bring."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from diffuserve.domain.errors import InvalidAdapter, InvalidParams
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.base_layers import plan_for
from diffuserve.models.adapters.files.read_adapter import read_adapter
from diffuserve.models.folders.folder import ModelFolder, open_model
from diffuserve.models.layers.lora_pair import Components


@dataclass(frozen=True)
class AdapterSource:
    """An adapter whose file fits the model by its header.

    `digest` is the SHA-256 of the file, `num_values` the numbers of its matrices, and `read` reads them,
    which may take long and raise `InvalidAdapter`. The `name` is for messages.
    """

    name: str
    digest: str
    num_values: int
    read: Callable[[], Components]


class AdapterSources:
    """Opens the adapters of a model: those of its `files`, which have names, and others by their content."""

    def __init__(self, model: str, files: Mapping[str, str | Path]) -> None:
        """Raise `InvalidAdapter` for a file that does not fit the model, by its header."""
        self._model = model
        self.named: Mapping[str, AdapterSource] = {
            name: self.open(name, file_digest(Path(file)), Path(file)) for name, file in files.items()
        }

    def open(self, name: str, digest: str, path: Path) -> AdapterSource:
        """Return an adapter of a verified file. Raise `InvalidAdapter` if it does not fit the model."""
        plan = plan_for(open_adapter(path), self._folder)
        return AdapterSource(name, digest, plan.num_values, partial(read_adapter, plan))

    @cached_property
    def _folder(self) -> ModelFolder:
        return open_model(self._model)


def with_digests(uses: tuple[AdapterUse, ...], named: Mapping[str, AdapterSource]) -> tuple[AdapterUse, ...]:
    """Return a request's adapters, each with its digest. Raise `InvalidParams` for a name without a file."""
    return tuple(use if use.digest else _named(use, named) for use in uses)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raise `InvalidAdapter` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidAdapter(f"{path}: {error.strerror}") from error


def _named(use: AdapterUse, named: Mapping[str, AdapterSource]) -> AdapterUse:
    if use.name not in named:
        known = ", ".join(sorted(named)) or "none"
        remedy = f"there is no such adapter; known: {known}{did_you_mean(use.name, named)}"
        raise InvalidParams("adapters", use.name, remedy)
    return AdapterUse(use.name, use.weight, named[use.name].digest)

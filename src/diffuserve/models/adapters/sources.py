"""The adapters that an engine can load: files that have names here, and files that requests bring."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from diffuserve.domain.errors import InvalidAdapter, InvalidParams
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.adapters.files.adapter_plan import AdapterPlan
from diffuserve.models.adapters.files.read_adapter import read_adapter
from diffuserve.models.adapters.named_files import named_files, plan_named, unknown_adapter
from diffuserve.models.folders.folder import ModelFolder, open_model
from diffuserve.models.layers.adapted.lora_pair import Components


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


FindFile = Callable[[str], Path]
"""Returns the verified file of a digest. It raises `DiffuserveError` if that is not to be had."""


@dataclass(frozen=True)
class AdapterSources:
    """The adapters that have names here, and those that `open_file` opens by name, digest and file."""

    named: Mapping[str, AdapterSource] = field(default_factory=dict)
    open_file: Callable[[str, str, Path], AdapterSource] | None = None

    def with_digests(self, uses: tuple[AdapterUse, ...]) -> tuple[AdapterUse, ...]:
        """Return a request's adapters, each with its digest, so that they are known by content from then on.

        Raise `InvalidParams` for a name that is not there.
        """
        return tuple(use if use.digest else replace(use, digest=self._named(use).digest) for use in uses)

    def open(self, use: AdapterUse, find: FindFile) -> AdapterSource:
        """Return an adapter that has its digest; `find` returns the file of one that has no name here.

        Raise `InvalidAdapter` if it does not fit the model by its header, and what `find` raises.
        """
        assert use.digest is not None
        own = self.named.get(use.name)
        if own is not None and own.digest == use.digest:
            return own
        if self.open_file is None:
            raise InvalidParams("adapters", use.name, "only adapters that have names are known here")
        return self.open_file(use.name, use.digest, find(use.digest))

    def _named(self, use: AdapterUse) -> AdapterSource:
        if use.name not in self.named:
            raise unknown_adapter(use.name, self.named)
        return self.named[use.name]


def adapter_sources(model: str, files: Mapping[str, str | Path]) -> AdapterSources:
    """Return the adapters of a model: those of `files` have names, and those that ship with a bundled model.

    Raise `InvalidAdapter` for a file that does not fit the model, by its header alone.
    """
    named = {}
    if paths := named_files(model, files):
        folder = open_model(model)
        named = {name: _open(folder, name, _digest(path), path) for name, path in paths.items()}
    return AdapterSources(named, partial(_open_for, model))


def _open_for(model: str, name: str, digest: str, path: Path) -> AdapterSource:
    return _open(open_model(model), name, digest, path)


def _open(folder: ModelFolder, name: str, digest: str, path: Path) -> AdapterSource:
    plan = plan_named(folder, name, path)
    return AdapterSource(name, digest, plan.num_values, partial(_read, plan, path))


def _read(plan: AdapterPlan, path: Path) -> Components:
    try:
        return read_adapter(plan)
    except InvalidAdapter as error:
        raise InvalidAdapter(str(error).removeprefix(f"{path}: ")) from error


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidAdapter(f"{path}: {error.strerror}") from error

"""Files of adapters that have names, and what is refused by their headers. Importing this loads no torch."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from diffuserve.domain.errors import InvalidAdapter, InvalidParams
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.adapter_plan import AdapterPlan
from diffuserve.models.adapters.files.base_layers import plan_for
from diffuserve.models.bundled import bundled_adapters
from diffuserve.models.folders.folder import ModelFolder, open_model


def named_files(model: str, files: Mapping[str, str | Path]) -> dict[str, Path]:
    """Return the files of a model's adapters by name: those that ship with it, and `files`."""
    return {name: Path(file) for name, file in {**bundled_adapters().get(model, {}), **files}.items()}


def check_adapters(model: str, files: Mapping[str, str | Path], uses: Sequence[AdapterUse]) -> None:
    """Refuse the adapters of a request as the engine does, before it is loaded.

    Raise `InvalidAdapter` for a file that does not fit the model, and `InvalidParams` for a name that is not
    there.
    """
    named = named_files(model, files)
    for use in uses:
        if use.name not in named:
            raise unknown_adapter(use.name, named)
    folder = open_model(model)
    for name in dict.fromkeys([*files, *(use.name for use in uses)]):
        plan_for(open_adapter(named[name]), folder)


def plan_named(folder: ModelFolder, name: str, path: Path) -> AdapterPlan:
    """Return what an adapter changes in a model.

    Raise `InvalidAdapter`, which names the adapter and not the worker's folder.
    """
    try:
        return plan_for(open_adapter(path), folder)
    except InvalidAdapter as error:
        message = str(error).removeprefix(f"{path}: ")  # tenants must not see the worker's folders
        raise InvalidAdapter(f"adapter {name!r}: {message}") from error


def unknown_adapter(name: str, known: Collection[str]) -> InvalidParams:
    """Return the error that an adapter is not there, with those that are and the way to it."""
    listed = ", ".join(sorted(known)) or "none"
    remedy = f"there is no such adapter; known: {listed}{did_you_mean(name, known)}"
    return InvalidParams("adapters", name, f"{remedy}; {_way_to(name)}")


def _way_to(name: str) -> str:
    """Say how an adapter that is not known here can be."""
    if homes := [model for model, files in bundled_adapters().items() if name in files]:
        return f"it ships with {' and '.join(homes)}"
    return "adapter_files gives a file a name, and `diffuserve adapters pull` fetches one from a store"

"""Makes the folder of a model that is imported from a file: tensor by tensor, and whole or not at all."""

import errno
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.models.checkpoint_files.converters import convert, is_ignored
from diffuserve.models.checkpoint_files.deferred import Deferred, defer
from diffuserve.models.checkpoint_files.import_plan import ConvertedPart, CopiedPart, ImportPlan, Part
from diffuserve.models.checkpoint_files.planned_numbers import describe_numbers, plan_tensors
from diffuserve.models.checkpoint_files.tensor_writer import write_tensors
from diffuserve.models.folders.folder import SETTINGS_FILE, ModelFolder
from diffuserve.models.folders.model_paths import INDEX_FILE
from diffuserve.models.folders.pretrained import expected_shapes
from diffuserve.models.folders.read_files import small_files
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.registry import known_families, load_family

log = logging.getLogger(__name__)

ORIGIN_FILE = "import.json"
_SCHEDULER = "scheduler_config.json"
_LIBRARIES = ("diffusers", "transformers")
_WEIGHTS_NAMES = {"diffusers": "diffusion_pytorch_model.safetensors", "transformers": "model.safetensors"}
_SPARE_BYTES = 1_000_000_000  # kept free for logs and images
_MAX_SHOWN = 3

Report = Callable[[int], None]
"""Receives the bytes written since it was last called."""


def write_model(
    plan: ImportPlan,
    target: Path,
    begin: Callable[[int], Report] = lambda _: lambda _: None,
    check: Callable[[Path], object] = lambda _: None,
    tell: Callable[[str], object] = log.info,
    keeps_few_bits: bool = True,
) -> None:
    """Write the folder of a planned model; it appears at `target` once it is whole.

    Before any weight is written `check` sees the folder, `begin` is told the bytes to write and returns what
    counts them, and `tell` hears which weights stay in few bits, and what is left out; without
    `keeps_few_bits` all become floats. What a run that broke off has left is removed by the next. Raise
    `InvalidModel` if the tensors do not fit the model's configs, `InvalidParams` where the disk has too
    little space or another process imports the same name.
    """
    with _partial_folder(target) as partial_folder:
        written = {
            name: _prepare(
                part,
                partial_folder / name,
                plan.base.index[name],
                _kept_layers(plan, name) if keeps_few_bits else None,
                tell,
            )
            for name, part in plan.parts.items()
        }
        _write_json(partial_folder / INDEX_FILE, plan.index)
        _write_json(partial_folder / ORIGIN_FILE, plan.origin)
        if plan.settings:
            _write_json(partial_folder / SETTINGS_FILE, plan.settings)
        num_bytes = sum(size for size, _ in written.values())
        _check_space(target, num_bytes)
        check(partial_folder)
        report = begin(num_bytes)
        for _, write in written.values():
            write(report)
        partial_folder.rename(target)


def _prepare(
    part: Part,
    target: Path,
    module: Sequence[str],
    layers: QuantizedLayers | None,
    tell: Callable[[str], object],
) -> tuple[int, Callable[[Report], None]]:
    """Write what is small of a component; return the bytes of its weights, and what writes them."""
    target.mkdir()
    if isinstance(part, CopiedPart):
        weights = _copy_small_files(part.folder, target)
        if part.changes:
            config = ModelFolder(target).json(_SCHEDULER)
            _write_json(target / _SCHEDULER, {**config, **part.changes})
        return sum(file.stat().st_size for file in weights), partial(_copy_weights, weights, target)
    _write_json(target / "config.json", part.config)
    library, class_name = module
    fitting = _fitting(part, expected_shapes(_find_class(library, class_name), target), class_name)
    tensors = plan_tensors(part.file, fitting, layers)
    for line in (*_describe_unused(part, fitting), *describe_numbers(part.file, fitting, tensors)):
        tell(f"{target.name}: {line}")
    file = target / _WEIGHTS_NAMES[library]
    return sum(tensor.num_bytes for tensor in tensors.values()), partial(write_tensors, file, tensors)


def _copy_small_files(source: Path, target: Path) -> list[Path]:
    """Copy a component's configs and vocabularies; return its weights."""
    for file in small_files(source):
        shutil.copyfile(file, target / file.name)
    has_weights = any(source.glob("*.safetensors"))
    return ModelFolder(source.parent).weights(source.name) if has_weights else []


def _copy_weights(files: list[Path], target: Path, report: Report) -> None:
    """Copy weights; those in the hub's cache, which nothing changes, get a second name if possible."""
    for file in files:
        blob = file.resolve()
        try:
            if blob.parent.name != "blobs":
                raise OSError(errno.EXDEV, "only files of the hub's cache never change")
            os.link(blob, target / file.name)
        except OSError:
            shutil.copyfile(blob, target / file.name)
        report(blob.stat().st_size)


def _find_class(library: str, name: str) -> Any:
    """Return the class of a component, of diffusers or transformers alone. Raise `InvalidModel`."""
    if library not in _LIBRARIES:
        raise InvalidModel(f"{library}.{name}: components are of {' and '.join(_LIBRARIES)} alone")
    found = getattr(import_module(library), name, None)
    if found is None:
        raise InvalidModel(f"{name} is no class of the {library} that is installed; upgrade it")
    return found


def _fitting(
    part: ConvertedPart, shapes: Mapping[str, tuple[int, ...]], class_name: str
) -> dict[str, Deferred]:
    """Return a component's tensors in its library's layout. Raise `InvalidModel` unless they fit it."""
    origin = f"{part.file.path}: its {part.layout.title}"
    try:
        converted = convert(part.layout.converter, defer(part.file, part.names), part.config)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidModel(f"{origin} is incomplete: {str(error)[:200]}") from error
    found: dict[str, Deferred] = {
        _plain(name): tensor for name, tensor in converted.items() if isinstance(tensor, Deferred)
    }
    wanted = {_plain(name): shape for name, shape in shapes.items()}
    found = {name: tensor for name, tensor in found.items() if name in wanted or name != _PROJECTION}
    for what, names in (("lacks", wanted.keys() - found), ("has too much:", found.keys() - wanted)):
        if names:
            raise InvalidModel(f"{origin} {what} {', '.join(sorted(names)[:_MAX_SHOWN])} for {class_name}")
    for name, shape in wanted.items():
        if tuple(found[name].meta.shape) != shape:
            raise InvalidModel(f"{origin}: {name} is {tuple(found[name].meta.shape)}, not {shape}")
    return {_published(name, shapes): found[name] for name in wanted}


def _describe_unused(part: ConvertedPart, tensors: Mapping[str, Deferred]) -> list[str]:
    """Return which of a part's tensors no module has a place for, if there are any."""
    used = {source for tensor in tensors.values() for source in tensor.sources}
    unused = sorted(name for name, short in part.names.items() if name not in used and not is_ignored(short))
    shown = ", ".join(unused[:_MAX_SHOWN])
    return [f"left out {len(unused)} tensors that its class does not have: {shown}"] if unused else []


def _kept_layers(plan: ImportPlan, component: str) -> QuantizedLayers | None:
    """Return the layers of a component whose weights may stay in few bits; `None` if there are none.

    Text encoders are not among them: they would give the whole folder their kind of numbers.
    """
    entry = known_families().get(plan.index["_class_name"])
    layers = (
        None if entry is None else load_family(entry).capabilities(plan.base).quantized_layers.get(component)
    )
    return None if layers is None or layers.is_weight_only else layers


_CLIP_PREFIX = "text_model."
_PROJECTION = "text_projection.weight"  # files have it also for encoders whose class has none


def _plain(name: str) -> str:
    """Return a name as some versions of transformers write it, and others with a prefix."""
    return name.removeprefix(_CLIP_PREFIX)


def _published(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    is_clip = "embeddings.position_embedding.weight" in {_plain(each) for each in shapes}
    return f"{_CLIP_PREFIX}{name}" if is_clip and name != _PROJECTION else name


@contextmanager
def _partial_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside the target to this process alone."""
    folder = target.with_name(f".{target.name}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _clear(folder)
        yield folder
    except BlockingIOError as error:
        raise InvalidParams("as", target.name, "is being imported by another process") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _check_space(target: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes + _SPARE_BYTES:
        raise InvalidParams(
            "as",
            target.name,
            f"needs {num_bytes / 1e9:.1f} GB, and {target.parent} has {free / 1e9:.1f} GB free; free some, "
            "or move the folder of imported models with XDG_DATA_HOME",
        )


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")

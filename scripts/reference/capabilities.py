"""Tables of the families and the bundled models, as they answer themselves; no weights are read."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from tempfile import TemporaryDirectory

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.bundled import bundled_models
from diffuserve.models.family import Capabilities
from diffuserve.models.folders.folder import open_configs
from diffuserve.models.registry import find_capabilities, known_families, read_spec
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from reference.markdown import code, table

_OWN = "diffuserve.models."
_ABILITIES: Mapping[str, Callable[[Capabilities], bool]] = {
    "whose blocks can be compiled (`compilable`)": lambda able: able.compilable is not None,
    "whose weights can be cut over GPUs (`shared`)": lambda able: bool(able.shared),
    "whose passes can be dealt to GPUs (`shares_passes`)": lambda able: able.shares_passes,
    "whose weights may stay on the host (`offloads`)": lambda able: len(able.offloads) > 1,
    "whose weights can be kept in few bits (`quantized_layers`)": lambda able: bool(able.quantized_layers),
    "that generates clips (`min_decode_bytes`)": lambda able: able.min_decode_bytes is not None,
}
_FACTS: Mapping[str, Callable[[ModelSpec], str]] = {
    "own size": lambda spec: f"{spec.width} × {spec.height}",
    "sides": lambda spec: f"{spec.min_size} to {spec.max_size} pixels, in multiples of {spec.size_multiple}",
    "sides that it has learned": lambda spec: _range(spec.learned_min_size, spec.learned_max_size),
    "pixels at most": lambda spec: f"{spec.max_pixels:,}",
    "steps by default": lambda spec: str(spec.num_inference_steps),
    "guidance": lambda spec: _guidance(spec),
    "negative prompts": lambda spec: _yes(spec.has_negative_prompt),
    "samplers by request": lambda spec: _samplers(spec),
    "prompt tokens": lambda spec: _range(spec.max_sequence_length, spec.longest_sequence_length),
    "frames": lambda spec: f"{spec.num_frames}, at most {spec.max_frames}" if spec.is_video else "1",
    "images of a request": lambda spec: _input_images(spec),
    "inpainting": lambda spec: _yes(spec.has_mask),
}


def regions() -> Mapping[str, str]:
    """Return the tables of pipeline classes, of what families can do, and of bundled models."""
    return {"pipelines": _pipelines(), "families": _abilities(), "bundled models": _bundled()}


def _pipelines() -> str:
    rows = ((code(name), code(_package_of(entry.module))) for name, entry in _entries().items())
    return table(("pipeline class in `model_index.json`", "family"), rows)


def _entries() -> Mapping[str, EntryPoint]:
    found = known_families().items()
    return {name: entry for name, entry in found if entry.module.startswith(_OWN)}


def _package_of(module: str) -> str:
    return module.removeprefix(_OWN).partition(".")[0]


def _abilities() -> str:
    """Return what can be done with a model of each family: a bundled one, or a small random one."""
    with TemporaryDirectory() as root:
        models = [*bundled_models(), *map(str, _small_models(Path(root)))]
        families = {_family_of(model): find_capabilities(model) for model in models}
    rows = ([what, *(_yes(able(each)) for each in families.values())] for what, able in _ABILITIES.items())
    return table(("an architecture", *map(code, families)), rows)


def _small_models(root: Path) -> list[Path]:
    """Write a small model of each family that has no bundled one."""
    return [
        write_flux2_checkpoint(root / "flux2"),
        write_qwen_image_checkpoint(root / "qwen-image"),
        write_z_image_checkpoint(root / "z-image"),
    ]


def _family_of(model: str) -> str:
    return _package_of(known_families()[open_configs(model).pipeline_class].module)


def _bundled() -> str:
    specs = [read_spec(name) for name in bundled_models()]
    rows = ([fact, *map(tell, specs)] for fact, tell in _FACTS.items())
    return table(("", *(code(spec.name) for spec in specs)), rows)


def _guidance(spec: ModelSpec) -> str:
    if not spec.has_guidance:
        return "no"
    return "yes, by two passes" if spec.guidance_passes == 2 else "yes, as an input of the model"


def _samplers(spec: ModelSpec) -> str:
    first, second, *others = spec.samplers
    if len(others) > 2:
        return f"{len(spec.samplers)}, such as {code(first)} and {code(second)}"
    return ", ".join(map(code, spec.samplers))


def _input_images(spec: ModelSpec) -> str:
    if not spec.max_input_images:
        return "no"
    role = "first frame" if spec.has_first_frame else "to start from" if spec.has_strength else "references"
    return f"{spec.max_input_images}, {role}"


def _range(low: int, high: int) -> str:
    return f"{low} to {high}" if low != high else str(low)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"

"""Tables of the families and the bundled models, as they answer themselves; no weights are read."""

import json
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from tempfile import TemporaryDirectory

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.bundled import bundled_models
from diffuserve.models.family import Capabilities
from diffuserve.models.folders.folder import open_configs
from diffuserve.models.registry import find_capabilities, known_families, read_spec
from reference.markdown import code, table

_OWN = "diffuserve.models.families."
_QWEN_3_4B = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 2_560,
    "intermediate_size": 9_728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_QWEN_2_5_VL_7B = {
    "model_type": "qwen2_5_vl",
    "vocab_size": 152_064,
    "hidden_size": 3_584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
_CONFIGS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "Flux2KleinPipeline": {
        "transformer": {"joint_attention_dim": 7_680},
        "text_encoder": _QWEN_3_4B,
        "vae": {},
    },
    "QwenImagePipeline": {"transformer": {}, "text_encoder": _QWEN_2_5_VL_7B},
    "ZImagePipeline": {"transformer": {}, "text_encoder": _QWEN_3_4B},
}
"""The configs of models of families without a bundled one, by the class of the pipeline."""
_ABILITIES: Mapping[str, Callable[[Capabilities], bool]] = {
    "whose blocks can be compiled (`compilable`)": lambda able: able.compilable is not None,
    "whose weights can be cut over GPUs (`shared`)": lambda able: bool(able.shared),
    "whose passes can be dealt to GPUs (`shares_passes`)": lambda able: able.shares_passes,
    "whose weights may stay on the host (`offloads`)": lambda able: len(able.offloads) > 1,
    "whose weights can be kept in few bits (`quantized_layers`)": lambda able: bool(able.quantized_layers),
    "beside which ControlNets are loaded (`takes_controlnets`)": lambda able: able.takes_controlnets,
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
    """Return what can be done with a model of each family: a bundled one, or its configs alone."""
    with TemporaryDirectory() as root:
        models = [*bundled_models(), *(_write_configs(Path(root), name) for name in _CONFIGS)]
        families = {_family_of(model): find_capabilities(model) for model in models}
    rows = ([what, *(_yes(able(each)) for each in families.values())] for what, able in _ABILITIES.items())
    return table(("an architecture", *map(code, families)), rows)


def _write_configs(root: Path, pipeline_class: str) -> str:
    """Write the configs of a model, and return its folder."""
    folder = root / pipeline_class
    for component, config in _CONFIGS[pipeline_class].items():
        (folder / component).mkdir(parents=True)
        (folder / component / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline_class}), "utf-8")
    return str(folder)


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

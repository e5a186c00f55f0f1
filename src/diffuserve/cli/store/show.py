"""`diffuserve show`: what is known of one model."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from diffuserve.cli import options
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import print_facts
from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.store.models import ModelName
from diffuserve.domain.errors import ModelNotFound
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.folders.folder import awaits_pull, find_local_model
from diffuserve.models.folders.known_models import KnownModel, known_model
from diffuserve.models.installed import InstalledModel, describe_model
from diffuserve.models.registry import read_spec

EXAMPLES = """
Examples:

  diffuserve show tiny-flux

  diffuserve show flux-schnell

  diffuserve show /models/FLUX.1-dev --json
"""


def show(model: ModelName, as_json: options.Json = False) -> None:
    """Show what is known of a model: its size, defaults, limits and abilities, license, and where it is.

    Nothing is downloaded: of a model that is not on this machine, what a download would bring is shown.
    """
    known = known_model(model)
    local = None if awaits_pull(model) else find_local_model(model)
    if local is None and known is not None:
        _print(asdict(known), known_facts(known), as_json)
        return
    if local is None:
        raise ModelNotFound(f"{model} is not on this machine; `diffuserve pull {model}` downloads it")
    folder = local.path
    found = describe_model(model, folder)
    spec = None if found.problem else read_spec(str(folder))
    values = {**asdict(found), "path": str(folder), "license": known and known.license}
    abilities = {} if spec is None else {"abilities": asdict(spec)}
    _print(values | abilities, _facts(found, spec, known), as_json)


def known_facts(known: KnownModel) -> Mapping[str, str]:
    """Return what is known of a model that is not on this machine."""
    return {
        "model": " ".join(known.names),
        "hub id": known.hub_id,
        "commit": known.commit or "the newest",
        "license": known.license,
        "download": known.size,
        "consent": f"{known.consent} (whether its page asks for it first)",
        "on this machine": f"no; `diffuserve pull {known.name}` downloads it",
    }


def _print(values: Mapping[str, Any], facts: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        echo(json.dumps(values, indent=2))
    else:
        print_facts({name: text for name, text in facts.items() if text})


def _facts(found: InstalledModel, spec: ModelSpec | None, known: KnownModel | None) -> Mapping[str, str]:
    facts = {
        "model": found.name,
        "family": found.run_by or found.family,
        "license": "" if known is None else known.license,
        "weights": f"{human_bytes(found.num_bytes)}, {found.dtype or 'of an unknown dtype'}",
        "problem": found.problem,
    }
    return {**facts, **({} if spec is None else spec_facts(spec)), "path": str(found.path)}


def spec_facts(spec: ModelSpec) -> Mapping[str, str]:
    """Return what a model makes of which requests, in words."""
    return {
        "makes": _makes(spec),
        "steps": str(spec.num_inference_steps),
        "guidance": f"{spec.guidance_scale:g}" if spec.has_guidance else "none",
        "sampler": spec.sampler,
        "samplers": ", ".join(spec.samplers),
        "prompt": f"up to {spec.longest_sequence_length} tokens",
        "takes": ", ".join(_takes(spec)) or "a prompt alone",
        "example": spec.example_prompt,
    }


def _makes(spec: ModelSpec) -> str:
    if spec.is_audio:
        return f"sounds of up to {spec.max_seconds:g} s"
    sides = f"{spec.width}x{spec.height}, from {spec.min_size} to {spec.max_size} pixels a side"
    learned = f"; it has learned {spec.learned_min_size} to {spec.learned_max_size}"
    sides += learned if spec.learned_max_size else ""
    if spec.max_frames == 1:
        return f"images of {sides}"
    return f"clips of {spec.num_frames} frames (up to {spec.longest_clip}) at {spec.fps} a second, of {sides}"


def _takes(spec: ModelSpec) -> list[str]:
    able = {
        "negative prompts": spec.has_negative_prompt,
        "weights of words": spec.has_prompt_weights,
        _up_to(spec.max_input_images, "image"): spec.max_input_images > 0,
        "masks": spec.has_mask,
        "a first frame": spec.has_first_frame,
        "a last frame": spec.has_last_frame,
        "control images": spec.has_control_image,
        _up_to(spec.max_image_prompts, "image prompt"): spec.max_image_prompts > 0,
        _up_to(spec.max_adapters, "LoRA adapter"): spec.max_adapters > 0,
        "lyrics": spec.has_lyrics,
    }
    return [name for name, has in able.items() if has]


def _up_to(most: int, thing: str) -> str:
    return f"one {thing}" if most == 1 else f"up to {most} {thing}s"

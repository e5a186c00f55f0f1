"""The settings file of a model folder, `diffuserve.json`: defaults, limits and traits of a checkpoint."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, get_type_hints

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.models.config import parse_config
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.folders.folder import SETTINGS_FILE, ModelFolder

# Fields of a spec that the architecture decides, and no settings file may change where the family knows it.
_ARCHITECTURE = frozenset(
    {
        "family",
        "has_guidance",
        "guidance_passes",
        "guided_above",
        "has_negative_prompt",
        "temporal_stride",
        "pixels_per_token",
        "sample_rate",
        "has_lyrics",
        "has_joint_attention",
        "size_multiple",
        "sampler",
        "samplers",
        "replaced_scheduler",
        "min_input_images",
        "max_input_images",
        "has_mask",
        "needs_mask",
        "has_first_frame",
        "encodes_clip",
        "has_last_frame",
        "needs_last_frame",
        "has_layers",
        "has_control_image",
        "needs_control_image",
        "max_image_prompts",
        "image_prompt_tokens",
        "averages_image_prompts",
        "controlnets",
        "control_modes",
        "control_work",
        "has_prompt_weights",
        "has_strength",
        "strength_rounds_up",
        "scales_references",
        "reference_text_tokens",
        "min_reference_side",
        "masks_references",
        "run_by",
        "shares_passes",
        "resumes",
        "has_previews",
    }
)
_TYPES = get_type_hints(ModelSpec)
_ONLY_OF = {"max_frames": "max_frames", "seconds": "max_seconds", "max_seconds": "max_seconds"}
"""Settings of models of clips or sounds alone, which have more than 1 of the default named here."""
_MAX_NUMBER, _MAX_TEXT = 1 << 31, 200
_TEXTS = tuple[str, ...]
_PREVIEW = "preview"  # an object, read by `preview.read_preview_map`


def build_spec(
    folder: ModelFolder,
    defaults: Mapping[str, Any],
    traits: Mapping[str, type] = MappingProxyType({}),
    fixed: Collection[str] = _ARCHITECTURE,
) -> ModelSpec:
    """Build a folder's spec: the family's `defaults`, overridden by the folder's settings file.

    `traits` are further settings that the family reads by itself, with their types, and `fixed` the fields
    that no settings file changes. Raise `InvalidModel` for a setting that is unknown, of a wrong type or out
    of bounds, and for defaults outside the spec's own limits.
    """
    known = {
        name: kind
        for name, kind in _TYPES.items()
        if name not in fixed and (name not in _ONLY_OF or defaults.get(_ONLY_OF[name], 1) > 1)
    }
    settings = _checked(folder, {**known, **traits})
    own = {name: value for name, value in settings.items() if name in known}
    values = {"name": folder.name, **defaults, **own}
    prompts = [values.get("example_prompt"), *values.get("example_prompts", ())]
    values["example_prompts"] = list(dict.fromkeys(filter(None, prompts)))
    spec = parse_config(ModelSpec, values, f"{folder.path}/{SETTINGS_FILE}")
    try:
        sides = {"width": spec.width, "height": spec.height} if spec.has_size else {}
        spec.resolve(spec.simple_request("the defaults", **sides), seed=0)
    except InvalidParams as error:
        raise InvalidModel(f"{folder.path}/{SETTINGS_FILE}: the default {error}") from error
    return spec


def _check_bounds(folder: ModelFolder, name: str, value: object) -> None:
    is_out = not 0 <= value <= _MAX_NUMBER if isinstance(value, int | float) else len(str(value)) > _MAX_TEXT
    if is_out:
        raise InvalidModel(
            f"{folder.path}/{SETTINGS_FILE}: {name} must be a number in 0…{_MAX_NUMBER:,} or a text of at "
            f"most {_MAX_TEXT} characters"
        )


def _checked(folder: ModelFolder, types: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in folder.settings.items() if name != _PREVIEW}
    for name, value in settings.items():
        expected = types.get(name)
        if expected == _TEXTS and isinstance(value, list) and all(type(each) is str for each in value):
            for each in value:
                _check_bounds(folder, name, each)
            continue
        _check_bounds(folder, name, value)
        if expected is None:
            known = ", ".join([*types, _PREVIEW])
            raise InvalidModel(f"{folder.path}/{SETTINGS_FILE}: unknown setting {name!r}; known: {known}")
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise InvalidModel(
                f"{folder.path}/{SETTINGS_FILE}: {name}={value!r} must be of type {expected.__name__}"
            )
    return settings

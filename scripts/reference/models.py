"""Tables of diffusers' pipeline classes: what each takes, as its source says, and whether it is served."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from diffuserve.models.families.any_pipeline.proven import RESUME, SHARE_PASSES
from diffuserve.models.families.any_pipeline.reading.abilities import guidance, images
from diffuserve.models.families.any_pipeline.reading.layers import makes_layers
from diffuserve.models.families.any_pipeline.reading.modular import modular_names
from diffuserve.models.families.any_pipeline.reading.signature import (
    Signature,
    pipeline_names,
    read_signature,
)
from diffuserve.models.families.any_pipeline.reading.sources import installed_version
from diffuserve.models.families.any_pipeline.reading.tasks import (
    FRAMES,
    Task,
    control_argument,
    makes_sound,
    task_of,
    why_not_served,
)
from diffuserve.models.registry import known_families
from reference.markdown import code, table

_PROVEN: Mapping[str, frozenset[str]] = {"shares passes": SHARE_PASSES, "resumes": RESUME}
"""Columns of what a test has shown of classes."""
_HEADINGS = (
    *("class", "for", "steps", "guidance", "negative prompts", "images of a request", "makes"),
    *_PROVEN,
)


def regions() -> Mapping[str, str]:
    """Return the counts, and the tables of the classes that are served and of those that are not."""
    classes, blocks = _signatures(pipeline_names()), _signatures(modular_names())
    served, refused = _parted(classes)
    modular, refused_modular = _parted(blocks)
    return {
        "counts": _counts(classes, served, modular),
        "served classes": table(_HEADINGS, map(_row, served)),
        "modular pipelines": table(_HEADINGS, map(_row, modular)),
        "refused classes": table(("class", "why"), map(_reason, [*refused, *refused_modular])),
    }


def _signatures(names: Iterable[str]) -> list[Signature]:
    found = (read_signature(name) for name in names)
    return [signature for signature in found if signature is not None]


def _parted(classes: Sequence[Signature]) -> tuple[list[Signature], list[Signature]]:
    served = [each for each in classes if not why_not_served(each)]
    return served, [each for each in classes if why_not_served(each)]


def _counts(classes: Sequence[Signature], served: Sequence[Signature], modular: Sequence[Signature]) -> str:
    own = sum(each.name in known_families() for each in served)
    tasks = Counter(task_of(each) for each in served)
    told = ", ".join(f"{tasks[task]} {task}" for task in Task if tasks[task])
    return (
        f"Of the {len(classes)} pipeline classes of diffusers {installed_version()} {len(served)} can be "
        f"asked for with the fields of a job: {told}. {own} of them have a family of their own here, and "
        f"{len(served) - own} are run by diffusers. Modular pipelines add {len(modular)}.\n"
    )


def _row(signature: Signature) -> list[str]:
    steps = signature.arguments.get("num_inference_steps")
    told = guidance(signature)
    own = " (own family)" if signature.name in known_families() else ""
    return [
        f"{code(signature.name)}{own}",
        task_of(signature).value,
        "" if steps is None else str(steps),
        _guidance(told),
        "yes" if told.get("has_negative_prompt") else "",
        _images(signature),
        _makes(signature),
        *("yes" if signature.name in names else "" for names in _PROVEN.values()),
    ]


def _reason(signature: Signature) -> list[str]:
    return [code(signature.name), why_not_served(signature)]


def _guidance(told: Mapping[str, object]) -> str:
    if not told["has_guidance"]:
        return ""
    if told["guidance_passes"] == 1:
        return f"{told['guidance_scale']:g}, an input"
    return f"{told['guidance_scale']:g}, above {told['guided_above']:g}"


def _images(signature: Signature) -> str:
    able = images(signature)
    roles = {
        "first frame": able.get("has_first_frame"),
        "last frame": able.get("has_last_frame"),
        "to start from": able.get("has_strength"),
        "mask": able.get("has_mask"),
        "control image": control_argument(signature) is not None,
    }
    named = [role for role, is_there in roles.items() if is_there]
    if able and not (able["has_first_frame"] or able.get("has_strength") or able["has_mask"]):
        named.insert(0, "references" if able["max_input_images"] > 1 else "image")
    return f"{', '.join(named)}{'' if able.get('min_input_images', 1) else ', or none'}"


def _makes(signature: Signature) -> str:
    if task_of(signature) is Task.SOUND:
        return "sound"
    if makes_layers(signature):
        return "layers"
    makes = "clip" if signature.first(*FRAMES) else "image"
    return f"{makes} with sound" if makes_sound(signature) else makes

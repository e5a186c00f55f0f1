"""AUTOMATIC1111's names of samplers and schedules, and the samplers that they stand for here. Pure."""

from collections.abc import Collection, Mapping

KARRAS = "karras"
TRAILING = "sgm_uniform"
_NOISE, _AUTOMATIC, _NORMAL = "noise", "automatic", "normal"

SAMPLERS: Mapping[str, tuple[str, ...]] = {
    "Euler": ("euler", "flow_match_euler"),
    "Euler a": ("euler_ancestral",),
    "Heun": ("flow_match_heun",),
    "DPM++ 2M": ("dpmpp_2m",),
    "DPM++ 2M SDE": ("dpmpp_2m_sde",),
    "DDIM": ("ddim",),
    "PLMS": ("pndm",),
    "UniPC": ("unipc",),
    "LCM": ("lcm",),
}
"""By name: our samplers, of which a model has one at most."""
_OF_KARRAS = ("dpmpp_2m", "dpmpp_2m_sde", "euler")
_KARRAS_BY_ITSELF = ("dpmpp_2m",)  # what the schedule "Automatic" is to them there

SCHEDULERS: Mapping[str, str] = {
    "automatic": "Automatic",
    "normal": "Normal",
    "karras": "Karras",
    "sgm_uniform": "SGM Uniform",
}
"""Schedules by name, with their labels."""


def known_names(available: Collection[str]) -> list[str]:
    """Return the names of samplers that some of `available` stand for."""
    return [name for name, ours in SAMPLERS.items() if any(each in available for each in ours)]


def name_of(sampler: str | None) -> str:
    """Return the name of one of our samplers; its own where there is none."""
    plain = (sampler or "").removesuffix("_karras")
    found = next((name for name, ours in SAMPLERS.items() if plain in ours), plain)
    return f"{found} Karras" if plain != (sampler or "") else found


def split_name(name: str, scheduler: str | None) -> tuple[str | None, str]:
    """Return the sampler's name as it is listed, `None` for an unknown one, and the name of its schedule.

    Older clients have both in one name: `DPM++ 2M Karras`.
    """
    wanted = name.strip().lower()
    schedule = (scheduler or _AUTOMATIC).strip().lower().replace(" ", "_")
    if wanted.endswith(" karras"):
        wanted, schedule = wanted.removesuffix(" karras"), KARRAS
    return next((known for known in SAMPLERS if known.lower() == wanted), None), schedule


def sampler_of(name: str, schedule: str, available: Collection[str]) -> str | None:
    """Return the sampler among `available` that a listed name and a schedule stand for, `None` if none."""
    for ours in SAMPLERS[name]:
        is_karras = schedule == KARRAS or (schedule == _AUTOMATIC and ours in _KARRAS_BY_ITSELF)
        if is_karras and ours in _OF_KARRAS and f"{ours}_karras" in available:
            return f"{ours}_karras"
        if ours in available:
            return ours
    return None


def is_meant(schedule: str, sampler: str) -> bool:
    """Return whether a sampler follows the schedule that was asked for."""
    return schedule in (_AUTOMATIC, _NORMAL, TRAILING) or sampler.endswith(KARRAS)

"""A pure decision: whether a model fits this machine, and which options make it fit, at what cost."""

from collections.abc import Sequence
from typing import Final

from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.doctor.check_result import CheckResult, failed, ok
from diffuserve.cli.doctor.facts import Facts, TorchFacts
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.weights.memory_need import MemoryNeed

_CHECK: Final = "fit"
_FLOAT32: Final = "float32"
_MOST_NAMED = 3
_COSTS = {
    Quantization.INT8: "nearly the same images",
    Quantization.FP8: "nearly the same images",
    Quantization.INT4: "visibly other images, slower steps",
    Offload.TEXT: "a copy of the text encoders for each batch of prompts",
    Offload.MODEL: "a copy of each part in its turn",
    Offload.LAYERS: "a copy of all layers in each step",
}


def loaded_item_bytes(torch: TorchFacts, wanted_dtype: str | None, stored_dtype: str) -> int:
    """Return the bytes of a number of the weights as engines load them, as `default_dtype` chooses it.

    `stored_dtype` is that of the model's files, empty if it is not here: models are published in bf16.
    """
    if wanted_dtype or not stored_dtype:
        return 4 if torch.used_dtype == _FLOAT32 else 2
    if torch.gpu_total_bytes:
        return 2  # float32 is loaded in half precision there; FLUX.1, which keeps it, is not published in it
    return 2 if stored_dtype == torch.used_dtype else 4


def check_fit(facts: Facts) -> CheckResult | None:
    """Compare what the weights and a request of the default size take with what is free."""
    model = facts.model
    if model.problem or not model.needs or facts.torch.problem:
        return None
    place, free = _free(facts)
    asked = next((need for need in model.needs if _is_asked(need, facts)), model.needs[0])
    detail = f"{_told(asked)} and {human_bytes(model.step_bytes)} or more for a request of the default size"
    if not model.is_here:
        detail = f"about {_told(asked)}, by what is published"
    detail = f"{model.name} takes {detail}; {human_bytes(free)} of {place} are free"
    if asked.num_bytes + model.step_bytes <= free:
        return ok(_CHECK, detail)
    return failed(_CHECK, detail, _remedy(_fitting(facts, free), place))


def _free(facts: Facts) -> tuple[str, int]:
    if facts.torch.gpu_total_bytes:
        return "the GPU's memory", facts.torch.gpu_free_bytes
    return "memory", facts.machine.memory_free_bytes


def _is_asked(need: MemoryNeed, facts: Facts) -> bool:
    stored = facts.model.quantization
    kept = facts.wanted_quantization if stored is Quantization.NONE else stored
    return (need.quantization, need.offload) == (kept, facts.wanted_offload)


def _fitting(facts: Facts, free: int) -> list[MemoryNeed]:
    """Return the ways that fit; on a CPU weights have nowhere to be put away to."""
    needs = [need for need in facts.model.needs if need.num_bytes + facts.model.step_bytes <= free]
    return needs if facts.torch.gpu_total_bytes else [n for n in needs if n.offload is Offload.NONE]


def _told(need: MemoryNeed) -> str:
    return f"{human_bytes(need.num_bytes)} for its weights" + (f" with {need.flags}" if need.flags else "")


def _remedy(fitting: Sequence[MemoryNeed], place: str) -> str:
    if not fitting:
        return f"no option makes it fit: more of {place}, several GPUs (--gpus), or a smaller model"
    options = [f"{need.flags} ({human_bytes(need.num_bytes)}{_cost(need)})" for need in fitting if need.flags]
    return f"give {', or '.join(options[:_MOST_NAMED])}"


def _cost(need: MemoryNeed) -> str:
    costs = [_COSTS[way] for way in (need.quantization, need.offload) if way in _COSTS]
    return f": {'; '.join(costs)}" if costs else ""

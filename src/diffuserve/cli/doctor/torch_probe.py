"""Facts of torch on this machine, as JSON: run in a process of its own, which may crash."""

import json
import sys
from typing import Any


def main() -> None:
    """Print the facts of torch for the device, the dtype and the model's folder on the command line.

    Each may be empty.
    """
    print(json.dumps(facts_of_torch(*sys.argv[1:4])))


def facts_of_torch(device_name: str = "", dtype_name: str = "", folder: str = "") -> dict[str, Any]:
    """Return the fields of `TorchFacts`. Raise whatever the import of torch raises."""
    import torch

    from diffuserve.domain.errors import DeviceUnavailable
    from diffuserve.models.machine.devices import choose_device, default_dtype, is_emulated, parse_dtype
    from diffuserve.models.machine.devices import dtype_name as name_of

    facts: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda}
    try:
        device = choose_device(device_name or None)
        dtype = parse_dtype(dtype_name or None) or default_dtype(torch.bfloat16, device)
    except DeviceUnavailable as error:
        return facts | {"used_device": device_name, "device_problem": str(error)}
    facts |= {"used_device": str(device), "used_dtype": name_of(dtype), **_kernel(device, dtype)}
    facts |= {"model_problem": _model_problem(folder) if folder else ""}
    facts |= {"is_dtype_emulated": is_emulated(dtype, device), "cpu_products": _cpu_products()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        facts |= {"gpu_free_bytes": free, "gpu_total_bytes": total}
    return facts


def _model_problem(folder: str) -> str:
    """Return why loading would refuse a model, which is asked for none of its weights; `""` if it would not.

    What only torch code reads is refused there alone, such as the options of a scheduler.
    """
    import torch

    from diffuserve.domain.models.parts import Parts
    from diffuserve.models.registry import check_model, load_pipeline
    from diffuserve.models.weights.load_plan import LoadPlan

    nothing = Parts(encoding=False, denoising=False, decoding=False)
    try:
        if not check_model(folder).spec.run_by:  # other libraries load all of a model, or nothing
            load_pipeline(folder, LoadPlan(torch.device("cpu"), parts=nothing))
    except Exception as error:  # code of a family, on files that anybody wrote
        return str(error).partition("\n")[0]
    return ""


def _cpu_products() -> list[str]:
    """Return the short numbers that this CPU has instructions for."""
    from diffuserve.models.machine.cpu_products import cpu_has_bf16, cpu_has_int8

    found = {"bfloat16": cpu_has_bf16(), "int8": cpu_has_int8()}
    return [name for name, has_instructions in found.items() if has_instructions]


def _kernel(device: Any, dtype: Any) -> dict[str, str]:
    """Return the attention kernel that would be used, and why it fails on two short sequences, if it does."""
    import torch

    from diffuserve.models.layers.attention import choose_kernel
    from diffuserve.models.layers.segments import Segments

    kernel = choose_kernel(device, dtype)
    try:
        qkv = torch.ones(12, 3, 2, 64, device=device, dtype=dtype)
        kernel(qkv, Segments.of((8, 4), device)).sum().item()
    except Exception as error:  # drivers and kernels raise errors of any kind
        return {"kernel": kernel.name, "kernel_problem": str(error).partition("\n")[0]}
    return {"kernel": kernel.name}


if __name__ == "__main__":
    main()

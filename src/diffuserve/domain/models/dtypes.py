"""The names of the dtypes that models are loaded in."""

SAFETENSORS_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Names of dtypes by what safetensors calls them."""
DTYPES = tuple(SAFETENSORS_DTYPES.values())
_SHORT_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}


def find_dtype(name: str) -> str | None:
    """Return torch's name of a dtype, `bfloat16` for `bf16` or `torch.bfloat16`; `None` for others."""
    plain = name.strip().lower().removeprefix("torch.")
    found = _SHORT_NAMES.get(plain, plain)
    return found if found in DTYPES else None

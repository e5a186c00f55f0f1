"""What options of other programs are called here: of A1111, InvokeAI, diffusers, vLLM and their like."""

from collections.abc import Collection, Mapping
from typing import Any, Final

_PROMPT: Final = "PROMPT"
_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "--adapter": ("--lora", "--loras", "--lora-path"),
    "--dtype": ("--precision", "--torch-dtype"),
    "--frames": ("--num-frames", "--video-length"),
    "--gpus": ("--num-gpus", "--tensor-parallel-size", "--tp"),
    "--guidance": ("--cfg", "--cfg-scale", "--guidance-scale", "--scale", "-C"),
    "--height": ("--H", "-H"),
    "--host": ("--address", "--bind", "--listen"),
    "--image": ("--img", "--init-image", "--init-img", "--input-image", "-I", "-i"),
    "--key": ("--api-key", "--token"),
    "--model": ("--checkpoint", "--ckpt", "--ckpt-name", "--model-id", "--model-name", "--model-path", "-m"),
    "--negative-prompt": ("--n-prompt", "--neg", "--neg-prompt", "--negative", "--uc"),
    "--num-images": (
        *("--batch-count", "--batch-size", "--count", "--n", "--n-iter", "--n-samples", "--num"),
        "--num-images-per-prompt",
    ),
    "--output": ("--out", "--outdir", "--outfile", "--output-dir", "--output-path", "--save"),
    "--quantize": ("--quant",),
    "--sampler": ("--sampler-index", "--sampler-name", "--sampling-method", "--scheduler", "-A"),
    "--server": ("--api-url", "--base-url", "--endpoint", "--url"),
    "--size": ("--dimensions", "--res", "--resolution"),
    "--steps": ("--ddim-steps", "--num-inference-steps", "--num-steps", "--sampling-steps", "-s"),
    "--strength": ("--denoise", "--denoising-strength", "-f"),
    "--width": ("--W", "-W"),
    _PROMPT: ("--prompt", "--prompts", "--text", "-p"),
}
_BY_NAME: Final = {foreign: ours for ours, names in _OURS.items() for foreign in names}


def our_name(option: str, known: Collection[str]) -> str | None:
    """Return what an option of another program is called in a command that knows these options.

    It is `PROMPT` for a prompt, which has none; `None` for what the command does not have.
    """
    dashed = option.replace("_", "-")
    found = dashed if dashed in known else _BY_NAME.get(dashed)
    return found if found in known else None


def explain(error: Any) -> None:
    """Have the error of an unknown option name ours. Typer keeps its class to itself: its fields tell it."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None or not hasattr(error, "possibilities"):
        return
    found = our_name(option, _known(context.command))
    if found is not None:
        ours = "a prompt is given without one" if found == _PROMPT else f"did you mean {found}?"
        error.message, error.possibilities = f"No such option: {option}; {ours}", None


def _known(command: Any) -> set[str]:
    """Return the options of a command, with `PROMPT` if it takes one."""
    flags = {flag for parameter in command.params for flag in parameter.opts}
    return flags | ({_PROMPT} if flags & {"prompt", "prompts"} else set())

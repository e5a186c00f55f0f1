"""`diffuserve calibrate`: fit the cost model before the first request."""

from typing import TYPE_CHECKING

from rich.progress import track
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.draw.loading import load_engine
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.domain.models.spec import ModelSpec
    from diffuserve.domain.requests.params import GenerationParams

_SCALES = (0.5, 0.75, 1.0, 1.5)  # relative to the side of the model's default size
_STEPS = (1, 2, 4)
_ROUNDS = 3


EXAMPLES = "Example:\n\n  diffuserve calibrate --model /models/FLUX.1-schnell"


@options.takes_settings("model", "device", "dtype", "quantization", "offload", *options.MODEL_STORE_OPTIONS)
def calibrate(settings: Settings) -> None:
    """Measure requests of several sizes and keep the fitted cost model for later runs.

    This is never necessary: the cost model is ready at once and learns from live requests.
    """
    from diffuserve.cli.preflight import check_requests, fetched

    config = fetched(settings.engine_process)
    check_requests(config, ())
    console = Console(stderr=True)
    with load_engine(config, console) as engine:
        table = Table("size", "steps", "measured s", "predicted s", box=None, header_style="bold")
        requests = sweep(engine.spec)
        for number in range(_ROUNDS):
            for request in track(requests, f"round {number + 1} of {_ROUNDS}", console=console):
                predicted = engine.estimate(request).seconds
                measured = engine.generate([request])[0].timings.device_seconds
                if number == _ROUNDS - 1:
                    size, steps = _size(request), str(request.num_inference_steps)
                    table.add_row(size, steps, f"{measured:.3f}", f"{predicted:.3f}")
    console.print(table)
    if engine.cost_model.has_settled:
        echo(f"kept in {engine.config.cost_fit_path}")
    else:
        console.print("not kept: other programs disturbed the steps; run it again when the machine is quiet")


def _size(request: "GenerationParams") -> str:
    return f"{request.width}x{request.height}" if request.width else f"{request.seconds:g} s"


def sweep(spec: "ModelSpec") -> "list[GenerationParams]":
    """Return requests around the model's own size or length, within its limits."""
    if spec.is_audio:
        lengths = [min(spec.seconds * scale**2, spec.max_seconds) for scale in _SCALES]
        return [
            spec.simple_request(f"calibration {seconds:g}", seconds=seconds, num_inference_steps=steps)
            for seconds in lengths
            for steps in _STEPS
        ]

    def side(pixels: int, scale: float) -> int:
        rounded = round(pixels * scale / 16) * 16
        return min(max(rounded, spec.min_size, 16), spec.max_size // 16 * 16)

    sizes = [(side(spec.width, scale), side(spec.height, scale)) for scale in _SCALES]
    return [
        spec.simple_request(f"calibration {width}", width=width, height=height, num_inference_steps=steps)
        for width, height in sizes
        if width * height <= spec.max_pixels
        for steps in _STEPS
    ]

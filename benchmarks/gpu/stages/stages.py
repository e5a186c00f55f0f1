"""The stages by name; nothing heavy is imported before one is played."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage: its function, the seconds after which it is stopped, and what it shows."""

    function: str
    limit_seconds: int
    shows: str


STAGES = {
    "about": Stage("machine:about", 120, "GPU, driver, versions, chosen kernels, ceilings"),
    "kernels": Stage("kernels:kernels", 240, "attention, fused kernels, fp8 and int8 beside plain formulas"),
    "parity": Stage("images:parity", 360, "every family beside diffusers, in float32 and in bf16"),
    "invariance": Stage("images:invariance", 180, "a request alone beside itself in a batch"),
    "oom": Stage("device:oom", 120, "a step that runs out of memory is halved and tried again"),
    "graphs": Stage("device:graphs", 60, "whether CUDA graphs are used"),
    "eager": Stage("speed:eager", 420, "images a minute at FLUX.1's size; writes 24 GB the first time"),
    "streams": Stage("device:streams", 420, "text, denoising and decoding overlapped, at FLUX.1's size"),
    "fp8": Stage("speed:fp8", 420, "as eager, with products in fp8"),
    "int8": Stage("speed:int8", 420, "as eager, with products in int8"),
    "compiled": Stage("speed:compiled", 540, "as eager, with blocks compiled by torch.compile"),
}

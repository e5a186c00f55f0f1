"""Claims about models: few steps, weights that wait on the host, weights in fewer bits."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.claims.claim import Finding, ratio
from benchmarks.engine.engine import alternate
from benchmarks.engine.offload import step_seconds
from benchmarks.engine.quantization import weight_bytes
from benchmarks.shared import workloads
from benchmarks.shared.sides import RemoteSide
from diffuserve import Engine
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization

_MODEL = workloads.CHECKPOINT.name
_STEPS = (4, 28, 50)


def steps(ours: RemoteSide, rounds: int) -> Iterator[Finding]:
    """Compare lone images in few steps and in many."""

    def seconds(number: int, seed: int) -> float:
        image = replace(*workloads.equal(1, seed, 128), num_inference_steps=number)
        return float(ours.run_all([image]))

    runs = alternate(rounds, {str(number): partial(seconds, number) for number in _STEPS})
    few, *many = map(str, _STEPS)
    for number in many:
        yield ratio("steps", f"a lone image of 128×128 in {number} steps, in {few}", runs[number], runs[few])


def offload(rounds: int) -> Iterator[Finding]:
    """Compare a step whose layers wait on the host with one whose weights stay."""

    def of(mode: Offload, _: int) -> float:
        with Engine.load(_MODEL, device="cpu", offload=mode) as engine:
            return step_seconds(engine, 1)

    runs = alternate(rounds, {mode.value: partial(of, mode) for mode in (Offload.NONE, Offload.LAYERS)})
    name = "a step on a CPU, where copies stay within its memory: `--offload layers`, none"
    yield ratio("offload", name, runs[Offload.LAYERS], runs[Offload.NONE])


def bits() -> Iterator[Finding]:
    """Compare the bytes of a loaded model with those of its quantized weights."""
    sizes = {}
    for kind in (Quantization.NONE, Quantization.INT8, Quantization.INT4):
        with Engine.load(_MODEL, device="cpu", quantization=kind) as engine:
            sizes[kind] = weight_bytes(engine.pipeline)
    whole = sizes.pop(Quantization.NONE)
    for kind, size in sizes.items():
        name = f"bytes of {_MODEL} with all its parts: as it is, `{kind.value}`"
        yield Finding(claim="bits", way="computed", compared=name, figure=whole / size)

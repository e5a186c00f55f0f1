"""Claims about GPUs, from what FLUX.1 is counted to be on tensors that have no memory; nothing is measured.

A step takes the time of its operations and bytes on an H100, as `benchmarks.gpu.predicted` has it: at the
GPU's peaks, which is a floor, and at what published speeds of a whole program come to. Copies cross a bus of
25 GB/s, as PCIe 4 does, and a disk is assumed to give 2 GB/s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.claims.claim import Finding
from benchmarks.engine.offload import META, MetaCopier, components
from benchmarks.gpu.kernels import SQUARE
from benchmarks.gpu.predicted import GPUS, KERNELS, SCHNELL, SERVED, Efficiency, image_seconds, step_seconds
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.families.flux.config import TRANSFORMER_LAYERS
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.offload.components import Component, place
from support.packed_step import MODELS, CountedStep, count_step

_PEAK = Efficiency(products=1.0, attention=1.0, memory=1.0, launch=0.0)
_GPU = GPUS["H100"]
_BUS, _DISK = 25e9, 2e9
_MEGAPIXELS = (1024 / 1000) ** 2
_IMAGE = "FLUX.1 at 1024×1024"
_MANY, _FEW = 28, 4


def counted() -> Iterator[Finding]:
    """Return what counts say of an H100."""
    alone, ten = (count_step(MODELS[SCHNELL.model], MODELS[SCHNELL.model].shapes(n, SQUARE)) for n in (1, 10))
    yield from _images_a_minute(alone)
    yield from _steps(alone)
    yield _found(
        "ten",
        f"a step of ten images of {_IMAGE}, of one",
        *(step_seconds(each, _GPU, SERVED) for each in (ten, alone)),
    )
    parts = components("FLUX.1")
    yield from _offload(parts, alone, ten)
    yield from _loading(parts, alone)
    yield from _bits()


def _seconds(step: CountedStep, number: int, efficiency: Efficiency) -> float:
    drawing = replace(SCHNELL, steps=number)
    return image_seconds(drawing, step, 1, _MEGAPIXELS, _GPU, efficiency)


def _images_a_minute(alone: CountedStep) -> Iterator[Finding]:
    ways = {
        "if all operations ran at the peak, which none can exceed": _PEAK,
        "if each kernel came as near to the peaks as the best alone": KERNELS,
        "at what published speeds of others come to": SERVED,
    }
    for name, efficiency in ways.items():
        yield Finding(
            claim="minute",
            way="computed",
            compared=f"{_IMAGE} in {_MANY} steps {name}",
            figure=60 / _seconds(alone, _MANY, efficiency),
            unit=" a minute",
        )


def _steps(alone: CountedStep) -> Iterator[Finding]:
    many, few = (_seconds(alone, number, SERVED) for number in (_MANY, _FEW))
    yield _found("steps", f"{_IMAGE} in {_MANY} steps, in {_FEW}", many, few)


def _offload(parts: Sequence[Component], alone: CountedStep, ten: CountedStep) -> Iterator[Finding]:
    copies = place(parts, Offload.LAYERS, META, MetaCopier()).step_bytes / _BUS
    for name, step in {"one image": alone, "ten images": ten}.items():
        computing = step_seconds(step, _GPU, SERVED)
        compared = f"a step of {name} of {_IMAGE}, whose layers are copied meanwhile, and resident"
        yield _found("offload", compared, max(copies, computing), computing)


def _loading(parts: Sequence[Component], alone: CountedStep) -> Iterator[Finding]:
    size = sum(parameter.nbytes for part in parts for parameter in part.module.parameters())
    for name, speed, number in (
        ("the host's memory at 25 GB/s", _BUS, _FEW),
        ("a disk at 2 GB/s", _DISK, _FEW),
        ("a disk at 2 GB/s", _DISK, _MANY),
    ):
        image = _seconds(alone, number, SERVED)
        compared = f"{_IMAGE} in {number} steps, its weights read from {name} for each image, kept"
        yield _found("loading", compared, size / speed + image, image)


def _bits() -> Iterator[Finding]:
    sizes = {}
    for kind in (Quantization.NONE, Quantization.INT8, Quantization.INT4):
        transformer = components("FLUX.1")[2].module
        quantize_layers(transformer, TRANSFORMER_LAYERS, kind)
        sizes[kind] = sum(parameter.nbytes for parameter in transformer.parameters())
    whole = sizes.pop(Quantization.NONE)
    for kind, size in sizes.items():
        yield _found("bits", f"bytes of FLUX.1's transformer: as it is, `{kind.value}`", whole, size)


def _found(claim: str, compared: str, slow: float, fast: float) -> Finding:
    return Finding(claim=claim, way="computed", compared=compared, figure=slow / fast)

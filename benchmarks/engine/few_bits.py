"""Measures models that are imported from files in few bits: nearness to their own images, and what it takes.

    python -m benchmarks few-bits

Quality: the transformer of the bundled tiny-flux becomes a file of each kind and is imported, as it is and
dequantized; each draws the same prompts and seeds. Import: a random FLUX.1 of full width and few layers, a
file of 1.2 GB whose weights are in Q4_K, in a process of its own. Speed: one product at FLUX.1's width, in
processor time of one thread, kinds in turn.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.engine.quantization import (
    Frames,
    Row,
    cpu_seconds,
    decibels,
    draw,
    held_out,
    layer,
    requests,
    still,
)
from benchmarks.shared.default_dtype import engine_dtype
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve import Engine
from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization
from diffuserve.models.bundled import bundled_models
from diffuserve.models.checkpoint_files.import_plan import plan_import
from diffuserve.models.checkpoint_files.write_model import write_model
from diffuserve.models.folders.folder import SETTINGS_FILE
from diffuserve.models.layers.quantized.quantization import quantize_weight
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.gguf_files import random_blocks, write_gguf
from support.original_layouts import flux_layout, read_part

MODEL = "tiny-flux"
KINDS = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "fp8 with scales", "fp8")
_WIDTH, _NUM_DOUBLE, _NUM_SINGLE = 3072, 3, 5
_ROWS = (64, 256, 1024)
_ROUNDS = 5
_FP8_MAX = 448
_PACKAGES = ("torch", "gguf", "diffusers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--label", default="cpu")
    parser.add_argument("--import", dest="imported", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--dequantize", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.imported:
        file, base = arguments.imported
        print(json.dumps(import_once(file, base, not arguments.dequantize)))
        return
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tables = {
            "Images beside those of the own weights": list(quality(Path(folder), arguments.num_prompts)),
            "Seconds and memory of an import": list(imports(Path(folder))),
            "One product of 3072 → 3072, one thread": list(products()),
        }
    text = "\n\n".join(markdown_table(title, rows) for title, rows in tables.items())
    print(text)
    stem = RESULTS / f"few-bits_{arguments.label}"
    write_report(stem, tables, f"# Models of files in few bits\n\n{text}", read_conditions(_PACKAGES))


def quality(folder: Path, num_prompts: int) -> Iterator[Row]:
    """Yield a row for each kind of file."""
    base = bundled_models()[MODEL]
    wanted = requests(still(held_out(num_prompts)))
    own = draw_by(base, wanted)
    tensors = flux_layout(read_part(base, "transformer"))
    for kind in KINDS:
        file = write_file(folder / kind.replace(" ", "-"), tensors, kind)
        row = {"file": kind, "MB": f"{file.stat().st_size / 1e6:.2f}"}
        for title, keeps in (("kept", True), ("dequantized", False)):
            made = folder / f"{kind}-{title}"
            write_model(plan_import(file, str(base)), made, keeps_few_bits=keeps)
            shutil.copy(base / SETTINGS_FILE, made)  # a prompt's words are the base's to count
            row[f"MB, {title}"] = f"{weight_bytes(made) / 1e6:.2f}"
            row[f"PSNR, {title}"] = mean_decibels(draw_by(made, wanted), own)
        row["PSNR, dequantized and then int8"] = mean_decibels(draw_by(made, wanted, Quantization.INT8), own)
        print(row, flush=True)
        yield row


def draw_by(folder: Path, wanted: Any, quantization: Quantization | None = None) -> list[Frames]:
    with Engine.load(str(folder), device="cpu", quantization=quantization) as engine:
        return draw(engine, wanted)


def mean_decibels(drawn: list[Frames], own: list[Frames]) -> str:
    return f"{np.mean([decibels(*pair) for pair in zip(drawn, own, strict=True)]):.1f}"


def weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "transformer").glob("*.safetensors"))


def write_file(path: Path, tensors: Mapping[str, Tensor], kind: str) -> Path:
    """Write a file whose blocks' matrices are in a kind."""
    if not kind.startswith("fp8"):
        stored = {name: block_of(name, tensor.float().numpy(), kind) for name, tensor in tensors.items()}
        return write_gguf(path.with_suffix(".gguf"), stored)
    written: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not is_quantized(name, tensor.ndim):
            written[name] = tensor.contiguous()
            continue
        scale = tensor.abs().max().float() / _FP8_MAX if kind.endswith("scales") else torch.tensor(1.0)
        written[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        if kind.endswith("scales"):
            written[name.replace(".weight", ".scale_weight")] = scale
    save_file(written, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def block_of(name: str, numbers: np.ndarray, kind: str) -> tuple[str, Any]:
    if not is_quantized(name, numbers.ndim):
        return "F32", numbers
    return kind, gguf.quantize(numbers, GGMLQuantizationType[kind])


def is_quantized(name: str, num_dims: int) -> bool:
    return num_dims > 1 and "blocks." in name


def imports(folder: Path) -> Iterator[Row]:
    """Yield a row for an import that keeps the bits of its file, and for one that does not."""
    file, base = large_file(folder)
    for title, option in (("kept", ()), ("dequantized", ("--dequantize",))):
        command = (sys.executable, "-m", "benchmarks", "few-bits", "--import", str(file), str(base), *option)
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        found = json.loads(output.splitlines()[-1])
        size = {
            "GB of the file": f"{file.stat().st_size / 1e9:.2f}",
            "GB written": f"{found['bytes'] / 1e9:.2f}",
        }
        seconds = {"seconds": f"{found['wall']:.1f}", "CPU seconds": f"{found['cpu']:.1f}"}
        yield {
            "weights": title,
            **size,
            **seconds,
            "MiB of memory beside libraries": f"{found['memory']:.0f}",
        }


def import_once(file: Path, base: Path, keeps_few_bits: bool) -> dict[str, float]:
    """Import in this process, and return what it took."""
    import diffusers  # noqa: F401 (libraries are not counted)
    import transformers  # noqa: F401
    from diffusers import FluxTransformer2DModel  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        before, wall, cpu = peak(), time.perf_counter(), time.process_time()
        write_model(plan_import(file, str(base)), Path(folder) / "made", keeps_few_bits=keeps_few_bits)
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "memory": peak() - before,
            "bytes": weight_bytes(Path(folder) / "made"),
        }


def peak() -> float:
    """Return the largest memory of this process so far, in MiB; `ru_maxrss` has its parent's in it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def large_file(folder: Path) -> tuple[Path, Path]:
    """Write a FLUX.1 of full width and few layers in Q4_K, and a base for it."""
    base = write_flux_checkpoint(folder / "base")
    config = base / "transformer/config.json"
    width = {"num_attention_heads": 24, "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56]}
    inputs = {"joint_attention_dim": 4096, "pooled_projection_dim": 768}
    config.write_text(json.dumps(json.loads(config.read_text()) | width | inputs))
    drawn: dict[tuple[int, int], Any] = {}
    tensors: dict[str, tuple[str, Any]] = {}
    for name, (rows, columns) in shapes().items():
        if "blocks." not in name:
            tensors[f"{name}.weight"] = "F32", np.ones((rows, columns), np.float32)
        else:
            shape = rows, columns
            drawn[shape] = drawn[shape] if shape in drawn else random_blocks("Q4_K", rows, columns)
            tensors[f"{name}.weight"] = "Q4_K", drawn[shape]
        tensors[f"{name}.bias"] = "F32", np.zeros(rows, np.float32)
    tensors |= {name: ("F32", np.ones(128, np.float32)) for name in norms()}
    return write_gguf(folder / "large.gguf", tensors), base


def shapes() -> dict[str, tuple[int, int]]:
    """Return the layers of the large file."""
    width = _WIDTH
    double = {"mod.lin": (6, 1), "attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.0": (4, 1), "mlp.2": (1, 4)}
    single = {"modulation.lin": (3, 1), "linear1": (7, 1), "linear2": (1, 5)}
    found = {
        f"double_blocks.{index}.{stream}_{name}": (rows * width, columns * width)
        for index in range(_NUM_DOUBLE)
        for stream in ("img", "txt")
        for name, (rows, columns) in double.items()
    }
    found |= {
        f"single_blocks.{index}.{name}": (rows * width, columns * width)
        for index in range(_NUM_SINGLE)
        for name, (rows, columns) in single.items()
    }
    ends = {"img_in": 64, "txt_in": 4096, "time_in.in_layer": 256, "time_in.out_layer": width}
    ends |= {"vector_in.in_layer": 768, "vector_in.out_layer": width}
    found |= {name: (width, columns) for name, columns in ends.items()}
    return found | {"final_layer.linear": (64, width), "final_layer.adaLN_modulation.1": (2 * width, width)}


def norms() -> Iterator[str]:
    """Yield the norms of queries and keys."""
    for part in ("query", "key"):
        for index in range(_NUM_DOUBLE):
            yield from (
                f"double_blocks.{index}.{stream}_attn.norm.{part}_norm.scale" for stream in ("img", "txt")
            )
        yield from (f"single_blocks.{index}.norm.{part}_norm.scale" for index in range(_NUM_SINGLE))


def products() -> Iterator[Row]:
    """Yield how many times as fast as a plain product those are whose weights are unpacked, and int8."""
    torch.set_num_threads(1)
    layers = {"plain": layer(_WIDTH, _WIDTH, Quantization.NONE)}
    for title, kind, group in (
        ("int8", Quantization.INT8, None),
        ("8 bits of files", Quantization.INT8, SMALL_GROUP),
        ("4 bits of files", Quantization.INT4, SMALL_GROUP),
    ):
        made: Any = layer(_WIDTH, _WIDTH, kind)
        made.keep(quantize_weight(layers["plain"].weight.float(), kind, group))
        made.prepare()
        layers[title] = made
    for num_rows in _ROWS:
        x = torch.randn(num_rows, _WIDTH).to(engine_dtype())
        times: dict[str, float] = {}
        for _ in range(_ROUNDS):
            for title, each in layers.items():
                times[title] = min(times.get(title, 1e9), cpu_seconds(each, x))
        plain = times.pop("plain")
        told = {title: f"{plain / seconds:.2f}×" for title, seconds in times.items()}
        yield {"rows": str(num_rows), "plain ms": f"{1e3 * plain:.2f}", **told}


if __name__ == "__main__":
    main()

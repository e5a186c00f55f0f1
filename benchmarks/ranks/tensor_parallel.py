"""A benchmark of weights cut over ranks: what each holds and reads, and how near its images are.

    python -m benchmarks tensor-parallel
    python -m benchmarks tensor-parallel --family wan

A random FLUX.1 of 0.7 billion weights in bf16, its T5 included, or a Wan 2.1 of 0.2 billion, is loaded in
float32 over Gloo, by one rank, by two and by four. No time is measured: the figures hold on a busy machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

_PROGRAM = Path(__file__).with_name("tensor_parallel_rank.py")
_TITLE = "# Weights cut over ranks\n\n"
_ALONE = "sequence=1"
_PLANS = (_ALONE, "sequence=2", "tensor=2", "tensor=4", "tensor=2,sequence=2")
_GUIDED_PLANS = (*_PLANS, "cfg=2", "cfg=2,tensor=2")
_TRANSFORMER = {
    "num_attention_heads": 12,
    "attention_head_dim": 128,
    "num_layers": 4,
    "num_single_layers": 6,
    "axes_dims_rope": (16, 56, 56),
    "joint_attention_dim": 1024,
}
_T5 = {"d_model": 1024, "d_kv": 64, "d_ff": 2816, "num_heads": 16, "num_layers": 12}
_WAN_TRANSFORMER: dict[str, Any] = {
    "num_attention_heads": 12,
    "attention_head_dim": 128,
    "num_layers": 4,
    "ffn_dim": 8960,
    "text_dim": 1024,
}
_MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written; on a real disk")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    parser.add_argument("--family", choices=("flux", "wan"), default="flux", help="what the model is of")
    arguments = parser.parse_args()
    plans = _GUIDED_PLANS if arguments.family == "wan" else _PLANS
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        model = _write(arguments.family, Path(folder) / arguments.family)
        found = {plan: _run(model, plan, Path(folder)) for plan in plans}
        distances = {plan: _psnr(Path(folder) / plan, Path(folder) / _ALONE) for plan in plans}
    text = _TITLE + markdown_table(
        "Each rank, in MB", [row for plan in plans for row in _rows(plan, found, distances[plan])]
    )
    print(text)
    content = {"ranks": found, "psnr": {plan: each for plan, each in distances.items() if plan != _ALONE}}
    name = "tensor-parallel" if arguments.family == "flux" else f"tensor-parallel-{arguments.family}"
    write_counted(RESULTS / f"{name}_{arguments.label}", content, text, read_conditions(("torch",)))


def _write(family: str, folder: Path) -> Path:
    if family == "wan":
        return write_wan_checkpoint(folder, dtype=torch.bfloat16, **_WAN_TRANSFORMER)
    return write_flux_checkpoint(folder, dtype=torch.bfloat16, transformer=_TRANSFORMER, text_encoder_2=_T5)


def _run(model: Path, plan: str, folder: Path) -> list[dict[str, Any]]:
    out = folder / plan
    out.mkdir()
    launcher = (
        sys.executable,
        "-m",
        "diffuserve.engine_process.ranks.launcher",
        f"--ranks={ParallelPlan.parse(plan).num_ranks}",
        "--",
    )
    program = (str(_PROGRAM), "--model", str(model), "--plan", plan, "--out", str(out))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *program], check=True, env=environment, timeout=1_800)
    found: list[dict[str, Any]] = json.loads((out / "ranks.json").read_text())
    return found


def _psnr(ours: Path, alone: Path) -> float:
    """Return that of the image which is farthest from that of one rank."""
    names = sorted(path.name for path in alone.glob("*.png"))
    assert names, "no images"
    return min(_distance(ours / name, alone / name) for name in names)


def _distance(left: Path, right: Path) -> float:
    first, second = (np.asarray(Image.open(path), dtype=float) for path in (left, right))
    return float(10 * np.log10(255**2 / max(float(np.mean((first - second) ** 2)), 1e-12)))


def _rows(plan: str, found: dict[str, list[dict[str, Any]]], psnr: float) -> list[dict[str, str]]:
    whole = found[_ALONE][0]
    return [
        {
            "plan": plan,
            "rank": f"{each['rank']}",
            "weights": f"{each['weight_bytes'] / _MB:,.0f}",
            "of the whole": f"**{each['weight_bytes'] / whole['weight_bytes']:.2f}**",
            "memory taken": f"{each['memory_bytes'] / _MB:,.0f}",
            "of one rank's": f"**{each['memory_bytes'] / whole['memory_bytes']:.2f}**",
            "tensors read": f"{each['tensor_bytes'] / _MB:,.0f}",
            "from the disk": f"{each['disk_bytes'] / _MB:,.0f}" if each["rank"] == 0 else "",
            "PSNR to one rank, dB": "" if plan == _ALONE or each["rank"] else f"{psnr:.1f}",
        }
        for each in found[plan]
    ]


if __name__ == "__main__":
    main()

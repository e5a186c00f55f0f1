"""Compares requests of many pipeline classes, which share passes in the engine, with diffusers' own calls.

    python -m benchmarks any-pipeline-parity                      # all tiny pipelines
    python -m benchmarks any-pipeline-parity --names sd3 z-image  # some, and no result file

Each class is a random small checkpoint. Five requests of mixed steps, guidance, prompts and sizes arrive a
step apart on one core; PSNR is that of the worst one, in floats. Rows are those of each pass of the denoiser.
Seconds are of processor time of tiny models on one thread: no measure of what a real model gains.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted
from diffuserve.models.families.any_pipeline.proven import RESUME, SHARE_PASSES
from support.tiny_pipelines import TINY_PIPELINES, TinyPipeline, tiny_folder
from support.tiny_pipelines.requests import TinyRequest, mixed_requests
from support.tiny_pipelines.watched_engine import Levels, WatchedEngine, bare_levels, decibels

_PACKAGES = ("torch", "diffusers", "transformers")
_RUN_BY_US = ("stable-diffusion", "wan")  # classes with a family of their own, which is not measured here

Row = dict[str, str]


def main() -> None:
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for name in arguments.names or [name for name in TINY_PIPELINES if name not in _RUN_BY_US]:
        rows.append(measure(name))
        print(rows[-1], flush=True)
    if not arguments.names:
        table = markdown_table("Pipelines that diffusers runs, on random small checkpoints in float32", rows)
        write_counted(
            RESULTS / f"any-pipeline-parity_{arguments.label}",
            {"rows": rows},
            table,
            read_conditions(_PACKAGES) | {"dtype": "float32"},
        )


def measure(name: str) -> Row:
    """Return a row of the table, of a pipeline by its name among the tiny ones."""
    tiny = TINY_PIPELINES[name]
    requests = mixed_requests(tiny)
    with tempfile.TemporaryDirectory() as parent:
        folder = tiny_folder(name, Path(parent))
        watched = WatchedEngine(folder)
        start = time.process_time()
        watched.staggered([request.params(tiny) for request in requests])
        seconds = time.process_time() - start
        watched.engine.close()
        pipe = load_bare(folder)
        start = time.process_time()
        bare = draw_bare(pipe, tiny, requests)
        bare_seconds = time.process_time() - start
    worst = min(decibels(watched.levels[seed], levels) for seed, levels in bare.items())
    return {
        "class": f"`{tiny.class_name}`",
        "worst PSNR, dB": f"{worst:.0f}",
        "shares passes": said(tiny.class_name in SHARE_PASSES),
        "rows of the passes": " ".join(map(str, watched.rows)),
        "resumes": said(tiny.class_name in RESUME),
        "images in": ", ".join(tiny.pictures),
        "clip": said(tiny.is_clip),
        "sound": said(tiny.sound),
        "CPU s": f"{seconds:.2f}",
        "bare, one by one": f"{bare_seconds:.2f}",
    }


def draw_bare(pipe: Any, tiny: TinyPipeline, requests: Sequence[TinyRequest]) -> dict[int, Levels]:
    """Return what diffusers' own calls make of requests, one after another, by seed."""
    return {request.seed: bare_levels(pipe, tiny, request) for request in requests}


def load_bare(folder: Path) -> Any:
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def said(holds: bool) -> str:
    return "yes" if holds else ""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", nargs="+", choices=TINY_PIPELINES, help="those alone; writes no result")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()

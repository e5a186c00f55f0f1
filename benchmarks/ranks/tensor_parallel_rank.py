"""A rank that loads its part of a model, and draws with the others.

The launcher of ranks starts it for `tensor_parallel.py`.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner, rank_parts
from diffuserve.models.pipelines.base import PackedPipeline, packed
from diffuserve.models.registry import load_pipeline, weight_files
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, join_ranks, leave_ranks

_CPU = torch.device("cpu")
_SHAPES = ((64, 64, 2), (128, 96, 3), (96, 128, 2))


@dataclass(frozen=True)
class Loaded:
    """Bytes of a rank: its weights, the anonymous memory that loading took, and what it read of the files.

    `disk_bytes` came from the disk, with an empty page cache; only the first rank to load has that.
    """

    rank: int
    weight_bytes: int
    memory_bytes: int
    tensor_bytes: int
    disk_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ranks = join_ranks(ParallelPlan.parse(arguments.plan), _CPU, collective_seconds=600.0)
    with torch.inference_mode():
        ranks.world.add_up(torch.zeros(1))  # what the first exchange allocates belongs to no model
    if ranks.is_lead:
        drop_from_page_cache(weight_files(arguments.model, ALL_PARTS))
    for _ in range(ranks.index):  # one after the other: rank 0 reads from the disk
        ranks.agree()
    loaded, pipeline = load(arguments.model, ranks)
    for _ in range(ranks.size - ranks.index):
        ranks.agree()
    found = ranks.commands.gather(asdict(loaded))
    if not ranks.is_lead:
        FollowerRank(pipeline, ranks).run()
        leave_ranks()
    with Engine(pipeline, EngineConfig(num_threads=1), LeadRunner(pipeline, ranks)) as engine:
        for number, result in enumerate(engine.generate(requests(pipeline.spec))):
            for frame, image in enumerate(result.frames[0]):
                image.save(arguments.out / f"{number}-{frame}.png")
    (arguments.out / "ranks.json").write_text(json.dumps(found))
    leave_ranks()


def load(model: str, ranks: Ranks) -> tuple[Loaded, PackedPipeline]:
    """Load in float32: checkpoints in bf16 are converted, so that no weight stays in a mapped file."""
    sizes: list[int] = []
    memory, disk = anonymous_bytes(), disk_bytes()
    parts = rank_parts(ALL_PARTS, ranks)
    plan = LoadPlan(_CPU, torch.float32, ranks=ranks, parts=parts, on_read=sizes.append)
    pipeline = load_pipeline(model, plan)
    modules = [component.module for component in pipeline.components()]
    loaded = Loaded(
        rank=ranks.index,
        weight_bytes=sum(map(_weight_bytes, modules)),
        memory_bytes=anonymous_bytes() - memory,
        tensor_bytes=sum(sizes),
        disk_bytes=disk_bytes() - disk,
    )
    return loaded, packed(pipeline)


def _weight_bytes(module: nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters() if not each.is_meta)


def requests(spec: ModelSpec) -> list[GenerationParams]:
    """Requests of several sizes, which share steps; clips where the model draws them."""
    frames = 1 + 2 * spec.temporal_stride if spec.is_video else None
    return [
        GenerationParams(
            prompt=f"a red circle, {number}",
            width=width,
            height=height,
            num_inference_steps=steps,
            seed=number,
            max_sequence_length=None if spec.is_video else 32,
            num_frames=frames,
        )
        for number, (width, height, steps) in enumerate(_SHAPES)
    ]


def drop_from_page_cache(files: list[Path]) -> None:
    os.sync()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def anonymous_bytes() -> int:
    """Return the memory of this process that is in no file."""
    return _number(Path("/proc/self/status"), "RssAnon:") * 1024


def disk_bytes() -> int:
    """Return what this process has had read from disks."""
    return _number(Path("/proc/self/io"), "read_bytes:")


def _number(file: Path, name: str) -> int:
    line = next(line for line in file.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


if __name__ == "__main__":
    main()

"""A rank of a group that generates some requests and writes their outcomes.

    python -m diffuserve.engine_process.ranks.launcher --ranks 2 -- -m support.lockstep_program OPTIONS

Several models (`--model`) follow one another, each with a folder for its outcomes (`--out`), as starting
ranks takes longest. `--model fake` is the fake family with real guidance. With `--fail WHERE:RANK` that rank
(or `any`) raises for the request whose prompt is WHERE, there: at the `start` (before it draws noise), in a
`denoise` step (before the collectives), in its `decode`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner, rank_parts
from diffuserve.models.pipelines.base import PackedPipeline, packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, join_ranks, leave_ranks
from diffuserve.testing.fake_pipeline import FakePipeline


class InjectedError(Exception):
    """The error that a rank raises for `--fail`."""


def mixed_requests(is_fake: bool) -> list[GenerationParams]:
    """Sizes, step counts and numbers of images that differ; faults pick some by their prompts.

    The fake family draws some of them as clips.
    """
    shapes = {
        "a red circle": (64, 64, 2, 1),
        "start": (96, 48, 4, 2),
        "two blue stars": (64, 64, 3, 1),
        "denoise": (128, 80, 1, 1),
        "a small green square": (48, 64, 3, 2),
        "decode": (64, 64, 2, 1),
    }
    return [
        GenerationParams(
            prompt=prompt,
            width=width,
            height=height,
            num_inference_steps=steps,
            num_images=images,
            seed=number,
            max_sequence_length=16,
            guidance_scale=3.0 if is_fake else None,
            num_frames=1 + 4 * (number % 3) if is_fake else None,
        )
        for number, (prompt, (width, height, steps, images)) in enumerate(shapes.items())
    ]


def with_images(requests: Sequence[GenerationParams], spec: ModelSpec) -> list[GenerationParams]:
    """Give some requests images, and a mask, as far as the model takes any."""
    if not spec.max_input_images:
        return list(requests)
    image, mask = striped(96, 64, "RGB"), striped(96, 64, "L") if spec.has_mask else None
    given: dict[int, dict[str, Any]] = {
        0: {"image": image},
        2: {"image": image, "mask": mask},
        4: {"image": image} | ({"control_image": image} if spec.has_control_image else {}),
    }
    return [replace(params, **given.get(number, {})) for number, params in enumerate(requests)]


def striped(width: int, height: int, mode: Any) -> InputImage:
    pixels = b"".join(bytes([32 * (row % 8)]) * (width * len(mode)) for row in range(height))
    return InputImage(f"{mode} stripes", width, height, mode, pixels)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    plan = None if arguments.plan is None else ParallelPlan.parse(arguments.plan)
    ranks = join_ranks(plan, torch.device("cpu"), collective_seconds=120.0)
    for model, folder in zip(arguments.model, arguments.out, strict=True):
        pipeline = load(model, ranks)
        for where, rank in (fault.split(":") for fault in arguments.fail):
            if rank in (str(ranks.index), "any"):
                inject(pipeline, where)
        if ranks.is_lead:
            write(folder, generate(pipeline, ranks, model == "fake"))
        else:
            FollowerRank(pipeline, ranks).run()
    leave_ranks()


def load(model: str, ranks: Ranks | None) -> PackedPipeline:
    if model == "fake":
        return FakePipeline(ranks=ranks)
    parts = ALL_PARTS if ranks is None else rank_parts(ALL_PARTS, ranks)
    return packed(
        load_pipeline(model, LoadPlan(torch.device("cpu"), torch.float32, ranks=ranks, parts=parts))
    )


def generate(
    pipeline: PackedPipeline, ranks: Ranks | None, is_fake: bool
) -> list[GenerationResult | Exception]:
    runner = None if ranks is None else LeadRunner(pipeline, ranks)
    with Engine(pipeline, EngineConfig(num_threads=1), runner) as engine:
        requests = with_images(mixed_requests(is_fake), pipeline.spec)
        first = engine.generate(requests, return_exceptions=True)
        again = engine.generate(requests[:1], return_exceptions=True)  # the group goes on
        return [*first, *again]


def inject(faulty: Any, where: str) -> None:
    """Faults are put around the pipeline's own methods, whatever its family."""

    def fail(params: Sequence[GenerationParams]) -> None:
        if any(request.prompt == where for request in params):
            raise InjectedError(f"told to fail in {where}")

    if where == "start":
        faulty.init_latents = _after(lambda params, *_: fail([params]), faulty.init_latents)
    elif where == "denoise":
        faulty.denoise = _after(lambda batch: fail([request.params for request in batch]), faulty.denoise)
    else:
        faulty.decode = _after(lambda _latents, params: fail(params), faulty.decode)
        faulty.decode_chunks = _after(lambda _latents, params: fail([params]), faulty.decode_chunks)


def _after(check: Callable[..., None], run: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*values: Any) -> Any:
        check(*values)
        return run(*values)

    return checked


def write(folder: Path, outcomes: Sequence[GenerationResult | Exception]) -> None:
    told: list[str | None] = []
    for number, outcome in enumerate(outcomes):
        told.append(str(outcome) if isinstance(outcome, Exception) else None)
        if isinstance(outcome, GenerationResult):
            for index, frames in enumerate(outcome.frames):
                for frame, image in enumerate(frames):
                    image.save(folder / f"{number}-{index}-{frame}.png")
    (folder / "errors.json").write_text(json.dumps(told))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--out", nargs="+", type=Path, required=True)
    parser.add_argument("--plan")
    parser.add_argument("--fail", nargs="*", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""A request that goes on from a checkpoint gives what it would have given, after each step of each family."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from diffuserve.domain.errors import CheckpointUnusable
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.samplers import DIFFUSION_SAMPLERS
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine.requests.checkpoint import Checkpoint, max_file_bytes
from diffuserve.engine.requests.checkpoint_file import read_checkpoint, write_checkpoint
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner
from diffuserve.media.input_image import input_image
from diffuserve.models.pipelines.base import packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.fingerprint import hash_model
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.ranks import Ranks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.forked_ranks import run_on_ranks
from support.images import psnr
from support.tiny_pipelines import tiny_folder

MIN_PSNR = 50.0  # decibel, float32 on a CPU
MAX_BYTES = 10_000_000

Load = Callable[..., Engine]


def photo(width: int, height: int, seed: int = 1) -> InputImage:
    colors = torch.randint(256, (4, 5, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return input_image(Image.fromarray(colors.numpy()).resize((width, height), Image.Resampling.BICUBIC))


def half(width: int, height: int) -> InputImage:
    """Return a mask that is white in its left half."""
    mask = Image.new("L", (width, height))
    mask.paste(255, (0, 0, width // 2, height))
    return input_image(mask, "L")


PHOTO, HALF = photo(64, 64), half(64, 64)
SQUARE = GenerationParams(prompt="a red star", width=64, height=64, num_inference_steps=3, seed=3)
CLIP = replace(SQUARE, width=48, height=32, num_frames=5, guidance_scale=3.0)


def write_any(path: Path, *, kind: str, seed: int) -> Path:
    """Write a random checkpoint of a pipeline that diffusers runs."""
    return tiny_folder(kind, path, seed)


WRITERS: dict[str, Callable[..., Path]] = {
    "any": write_any,
    "flux": write_flux_checkpoint,
    "flux2": write_flux2_checkpoint,
    "qwen image": write_qwen_image_checkpoint,
    "unet": write_unet_checkpoint,
    "wan": write_wan_checkpoint,
    "z-image": lambda path, *, kind, seed: write_z_image_checkpoint(path / kind, seed=seed),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Return a function that loads each engine once; those of one checkpoint have the same weights."""

    @cache
    def folder(family: str, kind: str, seed: int) -> Path:
        path = tmp_path_factory.mktemp("model") / "small"
        return WRITERS[family](path, kind=kind, seed=seed)

    with ExitStack() as stack:

        @cache
        def loaded(
            family: str, kind: str, *, deterministic: bool = True, threads: int = 1, seed: int = 5
        ) -> Engine:
            config = EngineConfig(deterministic=deterministic, token_budget=100_000, num_threads=threads)
            path = folder(family, kind, seed)
            engine = Engine.load(path, device="cpu", dtype="float32", config=config)
            return stack.enter_context(engine)

        yield loaded


def checkpoints_of(engine: Engine, params: GenerationParams) -> tuple[list[Checkpoint], GenerationResult]:
    """Return a checkpoint after every step but the last, and what the request gave without a pause."""
    taken: list[Checkpoint] = []
    request_id = engine.add(params)
    while True:
        for output in engine.step():
            if output.finished:
                assert output.result is not None, output.error
                return taken, output.result
            if len(taken) < output.step < output.num_steps:
                taken.append(engine.checkpoint(request_id))


def resumed(
    engine: Engine, params: GenerationParams, taken: Sequence[Checkpoint], folder: Path
) -> list[GenerationResult]:
    """Go on from all checkpoints at once, by way of their files, beside a request that has just begun."""
    ids = [engine.add(replace(params, prompt="a neighbor", seed=99, num_images=1))]
    most = max_file_bytes(engine.pipeline, engine.spec.resolve(params, seed=0))
    for checkpoint in taken:
        path = folder / f"{checkpoint.step}.safetensors"
        write_checkpoint(path, checkpoint, most)
        assert path.stat().st_size <= most
        ids.append(engine.add(params, resume=read_checkpoint(path, most)))
    results: dict[str, GenerationResult] = {}
    while outputs := engine.step():
        for output in outputs:
            assert output.error is None
            if output.result is not None:
                results[output.request_id] = output.result
    return [results[request_id] for request_id in ids[1:]]


def frames_of(result: GenerationResult) -> list[Image.Image]:
    return [frame for frames in result.frames for frame in frames]


def check_equal(load: Load, name: tuple[str, str], params: GenerationParams, folder: Path) -> None:
    """Compare to the bit, in another engine with another number of threads."""
    taken, whole = checkpoints_of(load(*name), params)
    assert [checkpoint.step for checkpoint in taken] == list(range(1, len(taken) + 1))
    assert len(taken) >= 1
    expected = [frame.tobytes() for frame in frames_of(whole)]
    assert len(set(expected)) == len(expected)
    for result in resumed(load(*name, threads=2), params, taken, folder):
        assert [frame.tobytes() for frame in frames_of(result)] == expected


FLUX: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("schnell", {"num_images": 2}),
    "guidance": ("dev", {"guidance_scale": 4.0}),
    "image": ("dev", {"image": PHOTO, "strength": 0.7, "num_inference_steps": 4}),
    "mask": ("dev", {"image": PHOTO, "mask": HALF, "strength": 0.9, "num_inference_steps": 4}),
    "references": ("kontext", {"image": PHOTO}),
    "fill": ("fill", {"image": PHOTO, "mask": HALF}),
}
RARE = ("guidance", "image", "references", "fill")


SLOW = pytest.mark.slow


@pytest.mark.parametrize("case", ["text", "mask", *(pytest.param(case, marks=SLOW) for case in RARE)])
def test_flux_goes_on_to_the_last_bit(load: Load, tmp_path: Path, case: str) -> None:
    kind, values = FLUX[case]
    check_equal(load, ("flux", kind), replace(SQUARE, **values), tmp_path)


@pytest.mark.parametrize(
    "case", ["mask", pytest.param("text", marks=SLOW), pytest.param("image", marks=SLOW)]
)
def test_qwen_image_goes_on_to_the_last_bit(load: Load, tmp_path: Path, case: str) -> None:
    check_equal(load, ("qwen image", "image"), replace(SQUARE, **FLUX[case][1]), tmp_path)


@pytest.mark.parametrize("case", ["mask", pytest.param("references", marks=SLOW)])
def test_flux_2_goes_on_to_the_last_bit(load: Load, tmp_path: Path, case: str) -> None:
    params = replace(SQUARE, **FLUX[case][1], guidance_scale=4.0, max_sequence_length=64)
    check_equal(load, ("flux2", "base"), params, tmp_path)


@pytest.mark.parametrize(
    "sampler",
    [
        # What a sampler keeps between steps: nothing, noise, or one or two earlier predictions.
        pytest.param(
            name, marks=[] if name in ("euler", "euler_ancestral", "dpmpp_2m_sde", "unipc") else SLOW
        )
        for name in DIFFUSION_SAMPLERS
    ],
)
def test_stable_diffusion_goes_on_to_the_last_bit_with_every_sampler(
    load: Load, tmp_path: Path, sampler: str
) -> None:
    eta = 0.5 if sampler == "ddim" else None
    params = replace(
        SQUARE, sampler=sampler, eta=eta, num_inference_steps=5, guidance_scale=4.0, num_images=2
    )
    check_equal(load, ("unet", "xl"), params, tmp_path)


@pytest.mark.parametrize("sampler", ["euler_ancestral", "dpmpp_2m_sde", "unipc"])
def test_stable_diffusion_within_a_mask_goes_on_to_the_last_bit(
    load: Load, tmp_path: Path, sampler: str
) -> None:
    params = replace(
        SQUARE, sampler=sampler, num_inference_steps=5, image=PHOTO, mask=HALF, strength=0.9, num_images=2
    )
    check_equal(load, ("unet", "xl"), params, tmp_path)


WAN: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("t2v", {"num_images": 2, "num_inference_steps": 4}),
    "first frame": ("ti2v", {"image": photo(64, 32), "width": 64}),
    "two experts": ("a14b", {"num_inference_steps": 4}),
}


@pytest.mark.parametrize("case", ["text", *(pytest.param(case, marks=SLOW) for case in list(WAN)[1:])])
def test_wan_goes_on_to_the_last_bit(load: Load, tmp_path: Path, case: str) -> None:
    kind, values = WAN[case]
    check_equal(load, ("wan", kind), replace(CLIP, **values), tmp_path)


@pytest.mark.filterwarnings("ignore")  # diffusers' own
def test_what_diffusers_runs_goes_on_to_the_last_bit(load: Load, tmp_path: Path) -> None:
    """In another engine, to which half-done runs come as files, beside a request that has just begun."""
    check_equal(load, ("any", "sd3"), replace(SQUARE, num_images=2, guidance_scale=4.0), tmp_path)


@pytest.mark.parametrize("case", ["mask", *(pytest.param(case, marks=SLOW) for case in ("text", "image"))])
def test_z_image_goes_on_to_the_last_bit(load: Load, tmp_path: Path, case: str) -> None:
    values = {"guidance_scale": 2.0, **FLUX[case][1]}
    check_equal(load, ("z-image", "turbo"), replace(SQUARE, **values), tmp_path)


FAST = {
    "flux": ("dev", replace(SQUARE, image=PHOTO, mask=HALF, strength=0.9, num_inference_steps=4)),
    "unet": ("xl", replace(SQUARE, sampler="dpmpp_2m_sde", num_inference_steps=4, guidance_scale=4.0)),
    "wan": ("t2v", CLIP),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAST)
def test_without_deterministic_mode_it_gives_the_same_image_too(
    load: Load, tmp_path: Path, family: str
) -> None:
    kind, params = FAST[family]
    taken, whole = checkpoints_of(load(family, kind, deterministic=False), params)
    other = load(family, kind, deterministic=False, threads=2)
    for result in resumed(other, params, taken, tmp_path):
        pairs = zip(frames_of(result), frames_of(whole), strict=True)
        assert all(psnr(ours, theirs) >= MIN_PSNR for ours, theirs in pairs)


def test_another_engine_than_the_one_with_these_weights_refuses(load: Load) -> None:
    taken, _ = checkpoints_of(load("flux", "schnell"), SQUARE)
    with pytest.raises(CheckpointUnusable, match="weights"):
        load("flux", "schnell", seed=6).add(SQUARE, resume=taken[0])
    with pytest.raises(CheckpointUnusable, match=r"weights|schedule"):
        load("flux", "dev").add(SQUARE, resume=taken[0])


def test_the_seconds_of_both_engines_count(load: Load, tmp_path: Path) -> None:
    engine = load("flux", "schnell")
    taken, whole = checkpoints_of(engine, SQUARE)
    (last,) = resumed(load("flux", "schnell", threads=2), SQUARE, taken[-1:], tmp_path)
    assert last.timings.device_seconds > taken[-1].timings.device_seconds > 0
    assert whole.timings.device_seconds > taken[0].timings.device_seconds


def drawn_by_ranks(model: Path, params: GenerationParams, taken: Sequence[Checkpoint], store: Path) -> Any:
    """Go on from checkpoints on two ranks; return the frames of each, and leave files of their own."""

    def program(ranks: Ranks) -> Any:
        pipeline = load_pipeline(str(model), LoadPlan(torch.device("cpu"), torch.float32, ranks=ranks))
        if not ranks.is_lead:
            FollowerRank(packed(pipeline), ranks).run()
            return None
        config = EngineConfig(token_budget=100_000, num_threads=1)
        runner, read_hash = LeadRunner(packed(pipeline), ranks), partial(hash_model, str(model))
        with Engine(pipeline, config, runner, read_hash) as engine:
            results = resumed(engine, params, taken, store.parent)
            own, _ = checkpoints_of(engine, params)
        for checkpoint in own:
            write_checkpoint(store.parent / f"ranks-{checkpoint.step}", checkpoint, MAX_BYTES)
        return [frames_of(result) for result in results]

    return run_on_ranks(program, 2, store)[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAST)
def test_ranks_go_on_with_what_one_process_began_and_back(tmp_path: Path, family: str) -> None:
    kind, params = FAST[family]
    model = WRITERS[family](tmp_path / "model", kind=kind, seed=5)
    config = EngineConfig(token_budget=100_000, num_threads=1)
    with Engine.load(model, device="cpu", dtype="float32", config=config) as engine:
        taken, whole = checkpoints_of(engine, params)
        by_ranks = drawn_by_ranks(model, params, taken, tmp_path / "store")
        theirs = [read_checkpoint(path, MAX_BYTES) for path in sorted(tmp_path.glob("ranks-*"))]
        back = [frames_of(result) for result in resumed(engine, params, theirs, tmp_path)]
    assert len(by_ranks) == len(back) == len(taken)
    for frames in (*by_ranks, *back):
        pairs = zip(frames, frames_of(whole), strict=True)
        assert all(psnr(ours, theirs) >= MIN_PSNR for ours, theirs in pairs)

"""Engines that have loaded the parts of a model for one phase draw together what a whole one draws."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from diffuserve.agent.config import WorkerConfig
from diffuserve.domain.models.cost import Workload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.workers.worker import WorkerRole
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.warm_up import warm_up
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.registry import check_model, load_pipeline, num_weight_bytes
from diffuserve.models.weights.fingerprint import hash_weights
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.pass_ranks import PassRanks
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, SequenceRanks
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint

DENOISING, DECODING = Parts(decoding=False), Parts(encoding=False, denoising=False)
FOLLOWING = Parts(encoding=False)
_ENCODERS = ("Encoder", "QwenModel", "QwenVision", "Caption")  # in the names of modules that encode


def write_qwen_image_editor(folder: Path) -> Path:
    """Write an editor whose references are small."""
    write_qwen_image_checkpoint(folder, kind="edit-plus")
    (folder / "diffuserve.json").write_text('{"max_reference_pixels": 4096}')
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "flux": write_flux_checkpoint,
    "flux2": write_flux2_checkpoint,
    "qwen-image-edit": write_qwen_image_editor,
    "unet": write_unet_checkpoint,
    "wan": write_wan_checkpoint,
    "wan-i2v": lambda folder: write_wan_checkpoint(folder, kind="i2v"),
    "wan-a14b": lambda folder: write_wan_checkpoint(folder, kind="a14b"),
    "z-image": write_z_image_checkpoint,
}


@pytest.fixture(scope="module", params=WRITERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("model") / request.param)


def load(folder: Path, parts: Parts) -> Engine:
    config = EngineConfig(deterministic=True, num_threads=1)
    return Engine.load(folder, device="cpu", dtype="float32", config=config, parts=parts)


def drawn(engine: Engine, params: GenerationParams, **options: Any) -> GenerationResult:
    engine.add(params, **options)
    while True:
        for output in engine.step():
            if output.result is not None:
                return output.result
            assert output.error is None


def modules(value: Any, seen: set[int] | None = None) -> Iterator[nn.Module]:
    """Yield the modules of a pipeline, however deep its own objects hold them."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from modules(item, seen)
    elif type(value).__module__.startswith("diffuserve.models.") and hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from modules(item, seen)


def loaded(pipeline: Pipeline) -> dict[str, bool]:
    """Return which modules of a model have weights; none has some of them only."""
    found = {}
    for module in modules(pipeline):
        are_loaded = {not parameter.is_meta for parameter in module.parameters()}
        assert len(are_loaded) == 1
        name = type(module).__name__
        found[name] = are_loaded.pop()
    return found


def test_two_engines_with_their_own_parts_draw_what_a_whole_one_draws(folder: Path) -> None:
    with load(folder, ALL_PARTS) as whole, load(folder, DENOISING) as first, load(folder, DECODING) as last:
        spec = whole.spec
        frames = 1 + spec.temporal_stride if spec.is_video else 1
        side = max(spec.min_size, spec.size_multiple)
        params = spec.simple_request("a red ring", num_inference_steps=2, seed=3, num_images=2)
        params = dataclasses.replace(params, width=side, height=2 * side, num_frames=frames)
        latents = drawn(first, params, until_denoised=True).latents
        assert latents is not None
        decoded, expected = drawn(last, params, latents=latents), drawn(whole, params)
        assert [[frame.tobytes() for frame in clip] for clip in decoded.frames] == [
            [frame.tobytes() for frame in clip] for clip in expected.frames
        ]
        assert first.pipeline.cost_prior() == last.pipeline.cost_prior() == whole.pipeline.cost_prior()


def test_an_engine_loads_what_its_phase_needs_and_nothing_else(folder: Path) -> None:
    with load(folder, DENOISING) as first, load(folder, DECODING) as last:
        reads_images = first.spec.max_input_images > 0
        for name, is_loaded in loaded(first.pipeline).items():
            assert is_loaded == (
                "Decoder" not in name and (reads_images or "Encoder" not in name or "T5" in name)
            )
        assert {name for name, is_loaded in loaded(last.pipeline).items() if is_loaded} in (
            {"ImageDecoder"},
            {"VideoDecoder"},
        )
    everything = num_weight_bytes(str(folder), ALL_PARTS)
    assert everything == check_model(str(folder)).folder.num_weight_bytes()
    assert num_weight_bytes(str(folder), DENOISING) == everything
    assert num_weight_bytes(str(folder), DECODING) == sum(
        file.stat().st_size for file in (folder / "vae").glob("*.safetensors")
    )


def test_a_rank_that_encodes_nothing_loads_no_encoder(folder: Path) -> None:
    following = load_pipeline(str(folder), LoadPlan(torch.device("cpu"), torch.float32, parts=FOLLOWING))
    for name, is_loaded in loaded(following).items():
        assert is_loaded == (not any(part in name for part in _ENCODERS)), name
    saved = num_weight_bytes(str(folder), ALL_PARTS) - num_weight_bytes(str(folder), FOLLOWING)
    assert saved == sum(file.stat().st_size for file in folder.glob("*_encoder*/*.safetensors"))


class Sharing(Ranks):
    """The view of one of several ranks, which exchanges nothing."""

    def __init__(self, plan: ParallelPlan) -> None:
        self.plan, self.index, self.size = plan, 0, plan.num_ranks
        self.sequence, self.tensor = Mock(SequenceRanks, index=0, size=plan.sequence), None
        self.passes = Mock(PassRanks, index=0, size=plan.cfg)


def test_a_step_takes_less_memory_the_more_ranks_share_it(folder: Path) -> None:
    """A rank has a part of the tokens or of the passes, or whole rows of a UNet, and all of the weights."""
    nothing = Parts(encoding=False, denoising=False, decoding=False)
    plan = LoadPlan(torch.device("cpu"), torch.float32, parts=nothing)
    sharing = [ParallelPlan(2), ParallelPlan(4)]
    if check_model(str(folder)).spec.guidance_passes > 1:
        sharing.append(ParallelPlan(2, cfg=2))
    plans = (plan, *(dataclasses.replace(plan, ranks=Sharing(each)) for each in sharing))
    alone, *shared = (load_pipeline(str(folder), each) for each in plans)
    workload = Workload(4, 1024, text_tokens=16, num_pixels=4096, num_inference_steps=2)
    whole = alone.step_bytes(workload)
    expected = [whole // each.num_ranks for each in sharing]
    assert [pipeline.step_bytes(workload) for pipeline in shared] == expected
    row = dataclasses.replace(workload, num_sequences=1)
    if alone.spec.family.startswith("stable-diffusion"):
        assert shared[0].step_bytes(row) == alone.step_bytes(row)
    else:
        assert shared[0].step_bytes(row) == alone.step_bytes(row) // 2


@pytest.mark.parametrize(
    "folder",
    [
        # The others warm up as one of these do.
        pytest.param(name, marks=[] if name in ("flux", "unet", "wan") else [pytest.mark.slow])
        for name in WRITERS
    ],
    indirect=True,
)
@pytest.mark.parametrize("parts", [DENOISING, DECODING])
def test_an_engine_of_one_phase_warms_up_and_refuses_the_other(
    folder: Path, parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    with load(folder, parts) as engine:
        images = Mock()
        warm_up(engine, images)
        assert not caplog.records
        assert images.judge.called == parts.decoding
        with pytest.raises(RuntimeError, match="this engine has loaded no"):
            engine.add(engine.spec.simple_request("x"))


@pytest.mark.parametrize("role", WorkerRole)
def test_the_engine_process_learns_the_role_of_its_worker(role: WorkerRole) -> None:
    command = WorkerConfig(server="", role=role).command
    parts = EngineProcessConfig.from_json(command[-1]).parts
    assert (parts.denoising, parts.decoding) == (role.denoises, role.decodes)


def test_both_roles_agree_on_the_identity_of_the_weights(folder: Path) -> None:
    """Hash the whole folder in either role: latents of another text encoder are other latents."""
    before = hash_weights(folder)
    changed = next((folder / "text_encoder").glob("*.safetensors"))
    content = changed.read_bytes()
    try:
        changed.write_bytes(content + b"\0")
        assert hash_weights(folder) != before
    finally:
        changed.write_bytes(content)

"""Jobs with adapters of a store, drawn by a real worker: fetched by content, kept, told, and missed."""

import hashlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors.torch import save_file

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import Job, JobStatus, NewJob
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.modelstore.adapters.adapter_layout import blob_key
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.protocol.config import ImageOptions
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.images import psnr
from support.lora_pairs import random_pairs
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
VALUES: dict[str, Any] = {"prompt": "a ring", "seed": 1, "width": 64, "height": 64, "num_inference_steps": 2}


def write_adapter(folder: Path, path: Path, seed: int) -> str:
    tensors = {}
    for layer, pair in random_pairs(folder, 4, seed).items():
        tensors[f"transformer.{layer}.lora_A.weight"] = pair.down.contiguous()
        tensors[f"transformer.{layer}.lora_B.weight"] = (pair.scale * pair.up).contiguous()
    save_file(tensors, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def submit(plane: Plane, model: Path, **use: object) -> Job:
    values = {**VALUES, **({"adapters": [use]} if use else {})}
    return await plane.store.jobs.submit(
        NewJob(tenant_id="ada", model=model.name, cost_seconds=1.0, input=values)
    )


async def image_of(plane: Plane, job: Job) -> Image.Image:
    done = await until(plane, job, JobStatus.SUCCEEDED)
    assert done.result is not None
    key = f"{job.id}/{done.lease_token}/{done.result.artifacts[0].name}"
    return Image.open(BytesIO((plane.folder / "artifacts" / key).read_bytes()))


async def test_a_worker_draws_with_adapters_of_the_store(plane: Plane, start: Start, tmp_path: Path) -> None:
    model = write_flux_checkpoint(tmp_path / "small-flux", kind="dev", seed=5)
    file, store = tmp_path / "ink.safetensors", tmp_path / "store"
    digest = write_adapter(model, file, seed=10)
    blob = store / blob_key(digest)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(file.read_bytes())
    agent = start(
        engine_command=(),
        model=str(model),
        device="cpu",
        dtype="float32",
        prepare_models=False,
        images=ImageOptions(image_filter="none"),
        stored=ModelStoreConfig(adapter_store=store.as_uri(), model_cache=tmp_path / "cache"),
    )
    adapted = await submit(plane, model, name="ink", weight=0.7, digest=digest)
    missing = await submit(plane, model, name="gone", weight=1.0, digest="f" * 64)
    plain = await submit(plane, model)
    drawn, without = await image_of(plane, adapted), await image_of(plane, plain)
    failed = await until(plane, missing, JobStatus.FAILED)
    assert failed.error is not None
    assert failed.error.code == "adapter_not_found"
    assert "'gone'" in failed.error.message
    assert str(tmp_path) not in failed.error.message
    await eventually(lambda: agent._status.heartbeat().report.resident_adapters == (digest,))
    with Engine.load(model, device="cpu", dtype="fp32", config=EngineConfig(), adapters={"ink": file}) as own:
        alone = own.generate(GenerationParams(**VALUES, adapters=(AdapterUse("ink", 0.7),))).images[0]
        assert own.resident_adapters == (digest,)
    assert psnr(drawn, alone) >= 50
    assert psnr(drawn, without) < 40

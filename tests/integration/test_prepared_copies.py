"""Engines that map a prepared copy share its memory, and draw what others draw."""

import os
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.engine_link import EngineLink
from diffuserve.agent.engines.engine_starter import EngineStarter
from diffuserve.engine_process.model.prepared_model import load_options
from diffuserve.models.folders.folder import find_local_model
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.prepared_copies import find_copy, make_copy
from diffuserve.protocol.config import EngineProcessConfig, ImageOptions
from diffuserve.protocol.messages import AddJob, EngineReady, EngineRefused, JobFinished
from diffuserve.testing.checkpoints import write_flux_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells the end of a fork")

JOB = {"prompt": "a red circle", "seed": 1, "width": 64, "height": 64, "num_inference_steps": 1}
MEDIUM = {
    "num_attention_heads": 10,
    "attention_head_dim": 64,
    "num_layers": 6,
    "num_single_layers": 8,
    "axes_dims_rope": (8, 28, 28),
}
"""A transformer of 280 MB in bf16."""


def config_of(model: Path, cache: Path) -> EngineProcessConfig:
    images = ImageOptions(image_filter="none", file_metadata=False)
    return EngineProcessConfig(model=str(model), images=images, stored=ModelStoreConfig(model_cache=cache))


async def drawn(link: EngineLink) -> bytes:
    """Have an engine draw an image, and return its file."""
    async for message in link.messages():
        assert not isinstance(message, EngineRefused)
        if isinstance(message, EngineReady):
            link.send(AddJob(attempt="a", input=JOB, folder=str(link.job_folder("a"))))
        elif isinstance(message, JobFinished):
            return Path(message.files[0].path).read_bytes()
    raise AssertionError("the engine ended")


def kilobytes(rollup: str) -> dict[str, int]:
    return {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines() if line.endswith(" kB")}


def shared_share(pid: int) -> float:
    """Return the part of a process's resident memory that others have mapped too."""
    found = kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
    return 1 - (found["Private_Clean:"] + found["Private_Dirty:"]) / found["Rss:"]


def private_bytes_of(pid: int, folder: Path) -> tuple[int, int]:
    """Return the resident bytes of the mappings of a folder's files, and those of them that are private."""
    resident = private = 0
    is_inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_inside = str(folder) in line
        elif is_inside and line.startswith("Rss:"):
            resident += int(line.split()[1])
        elif is_inside and line.startswith("Private_"):
            private += int(line.split()[1])
    return resident << 10, private << 10


async def test_a_second_engine_shares_most_of_its_memory(tmp_path: Path) -> None:
    model = write_flux_checkpoint(tmp_path / "model", dtype=torch.bfloat16, transformer=MEDIUM)
    # What an engine computes with is its own: the warm-up shall take as little of it as the job.
    (model / "diffuserve.json").write_text('{"width": 64, "height": 64}')
    config = config_of(model, tmp_path / "cache")
    starter = EngineStarter(WorkerConfig(server="", engine_process=config))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(starter.close)
        link = await EngineLink.start(partial(starter.start, config))
        expected = await drawn(link)
        await link.close()
        copy = make_copy(load_options(config), config.stored)
        await starter.prepare_zygote()
        for _ in range(2):
            link = await EngineLink.start(partial(starter.start, config))
            stack.push_async_callback(link.close)
            assert await drawn(link) == expected
        assert shared_share(link.pid) >= 0.8
        resident, private = private_bytes_of(link.pid, copy.folder)
        assert resident > 200e6
        assert private < resident / 50


PREPARED = """
import sys
from unittest.mock import patch
from diffuserve.models.machine.torch_environment import prepare_torch
prepare_torch()
from diffuserve.engine_process.start import zygote
from diffuserve.protocol.config import EngineProcessConfig

with patch.object(zygote, "_HELD_SHARE", 0):
    for config in sys.argv[1:]:
        model = zygote.prepared(EngineProcessConfig.from_json(config))
        zygote.check_one_thread()
        print(model is not None, sum("/prepared/" in line for line in open("/proc/self/maps")))
"""


def held_by_a_zygote(*configs: EngineProcessConfig) -> list[tuple[bool, int]]:
    """Return whether a zygote, for which all models are large, holds each, and its mappings of copies."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARED, *(config.to_json() for config in configs)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = (line.split() for line in done.stdout.splitlines())
    return [(held == "True", int(num_mappings)) for held, num_mappings in told]


def test_a_zygote_prepares_models_of_the_cache_and_maps_them(tmp_path: Path) -> None:
    found = find_local_model("tiny-flux")
    assert found is not None
    cache = tmp_path / "cache"
    cached = shutil.copytree(found.path, cache / "models" / ("0" * 64) / "tiny-flux")
    elsewhere = shutil.copytree(found.path, tmp_path / "elsewhere")
    config = config_of(cached, cache)
    unwanted, foreign = replace(config, prepare_models=False), replace(config, model=str(elsewhere))
    *not_held, (is_held, num_mappings) = held_by_a_zygote(unwanted, foreign, config)
    assert not_held == [(False, 0), (False, 0)], "the first is not wanted, the second only a command copies"
    assert is_held
    assert num_mappings >= 5
    assert find_copy(load_options(foreign), config.stored) is None
    assert find_copy(load_options(config), config.stored) is not None


def test_a_model_that_cannot_be_copied_is_not_held(tmp_path: Path) -> None:
    found = find_local_model("tiny-flux")
    assert found is not None
    cached = shutil.copytree(found.path, tmp_path / "cache" / "models" / ("0" * 64) / "tiny-flux")
    small = ModelStoreConfig(model_cache=tmp_path / "cache", model_cache_bytes=1_000_000)
    config = replace(config_of(cached, small.model_cache), stored=small)
    assert held_by_a_zygote(config) == [(False, 0)]
    assert list((tmp_path / "cache").glob("p*/*")) == []

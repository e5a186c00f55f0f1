"""Workers of the chaos run beside the usual ones: one that fetches its model, and one of several models."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.control.processes import null_agent_command
from benchmarks.shared.throttled_bucket import BUCKET, ThrottledBucket
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig
from support.stored_models import manifest_of, write_files

SEVERAL_MODELS = ("tiny-flux", "tiny-sd")
"""Bundled models, of which memory holds one; a null engine stands for both."""
_RESIDENT_BYTES = 20_000_000
_FILES = {"model_index.json": 100, "transformer/a.safetensors": 12_000_000}
_BYTES_PER_SECOND = 3_000_000.0
_DOWNLOAD_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def ledger_of(folder: Path) -> Path:
    """Return the file that has a line for each phase of a job that an engine finished."""
    return folder / "ledger"


def several_models_command(server: str, name: str, max_jobs: int, seconds: float, folder: Path) -> list[str]:
    """Return the command of an agent with several models."""
    extra = ("--resident-bytes", str(_RESIDENT_BYTES))
    engine_options = ("--stands-for", "{model}", "--ledger", str(ledger_of(folder)))
    return null_agent_command(
        server, name, max_jobs, seconds, 1, models=SEVERAL_MODELS, extra=extra, engine_options=engine_options
    )


class StoredModel:
    """A model in a bucket that sends it within some seconds, and the cache of the worker that fetches it."""

    def __init__(self, folder: Path) -> None:
        store, files = folder / "store", write_files(folder / "model", _FILES)
        manifest = manifest_of(files)
        push(open_models(store.as_uri()), files, manifest)
        self._bucket = ThrottledBucket(store, _BYTES_PER_SECOND)
        self._cache, self._ledger = folder / "model-cache", ledger_of(folder)
        stored = ModelStoreConfig(model_store=f"s3://{BUCKET}", model_cache=self._cache)
        self._config = EngineProcessConfig(model=manifest.reference, stored=stored)
        self.environment = self._bucket.environment

    def command(self, server: str, name: str, max_jobs: int, seconds: float) -> list[str]:
        """Return the command of an agent whose engine fetches the model before it is ready."""
        fetch = ("--fetch", self._config.to_json(), "--ledger", str(self._ledger))
        return null_agent_command(server, name, max_jobs, seconds, 1, "denoise", engine_options=fetch)

    def forget(self) -> None:
        """Empty the cache, whose worker does not run."""
        shutil.rmtree(self._cache, ignore_errors=True)

    async def is_half_here(self, dice: random.Random, is_alive: Callable[[], bool]) -> bool:
        """Wait until a part of the model has been fetched; return whether the worker still lives."""
        wanted = dice.uniform(0.2, 0.8) * sum(_FILES.values())
        before = self._bucket.num_sent
        try:
            async with asyncio.timeout(_DOWNLOAD_SECONDS):
                while self._bucket.num_sent - before < wanted:
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return False
        return is_alive()

"""Where models come from that a worker was not started with: another process lists and fetches them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from diffuserve.agent.exit_codes import describe
from diffuserve.domain.workers.model_orders import ModelToHave
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import (
    MAX_LINE_BYTES,
    EngineLoading,
    EngineRefused,
    ModelAnnounced,
    ModelsToHave,
    decode,
)

Obtained = EngineLoading | ModelAnnounced | EngineRefused


class ModelSource:
    """Starts the process that gets models."""

    async def models(self) -> tuple[ModelToHave, ...]:
        """Return the models that can be had on this machine; none if they cannot be listed."""
        async with _started() as process:
            assert process.stdout is not None
            listed = [decode(line) async for line in process.stdout]
        return next((told.models for told in listed if isinstance(told, ModelsToHave)), ())

    async def obtain(self, config: EngineProcessConfig, room: int | None) -> AsyncGenerator[Obtained]:
        """Fetch a model, and yield the progress, then what it is or why it cannot be had.

        The download stops when the generator is closed.
        """
        limit = () if room is None else (f"--room={room}",)
        async with _started("--config", config.to_json(), *limit) as process:
            assert process.stdout is not None
            async for line in process.stdout:
                told = decode(line)
                assert isinstance(told, Obtained)
                yield told
                if not isinstance(told, EngineLoading):
                    return
            yield EngineRefused(reason=f"it could not be fetched: {describe(await process.wait())}")


@asynccontextmanager
async def _started(*words: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diffuserve.engine_process.start.obtain", *words),
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

"""Descriptions of models that are not loaded yet, which another process reads for the agent."""

import asyncio
import sys

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.exit_codes import describe
from diffuserve.protocol.messages import MAX_LINE_BYTES, EngineRefused, ModelAnnounced, decode


async def read_descriptions(config: WorkerConfig) -> list[ModelAnnounced | EngineRefused]:
    """Return, in order, the description of each of a worker's models, or why it cannot be served."""
    words = [word for process in config.own_processes for word in ("--config", process.to_json())]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diffuserve.engine_process.start.describe", *words),
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
    )
    assert process.stdout is not None
    told = [_read(line) async for line in process.stdout]
    missing = EngineRefused(reason=f"its configs cannot be read: {describe(await process.wait())}")
    return told + [missing] * (len(config.own_processes) - len(told))


def _read(line: bytes) -> ModelAnnounced | EngineRefused:
    message = decode(line)
    assert isinstance(message, ModelAnnounced | EngineRefused)
    return message

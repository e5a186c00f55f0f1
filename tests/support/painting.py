"""Models that take images, and an intake whose processes several applications share."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diffuserve.safety.processes.intake_pool import IntakePool
from support.hand_worker import HAND_SPEC

PAINTER = replace(
    HAND_SPEC,
    name="painter",
    max_input_images=1,
    has_mask=True,
    has_strength=True,
    has_control_image=True,
    has_guidance=True,
    has_negative_prompt=True,
    samplers=("euler", "ddim"),
)
"""Starts from an image, fills in where a mask is white, and follows a control image."""
EDITOR = replace(HAND_SPEC, name="editor", max_input_images=16, max_reference_pixels=4096)
"""Takes images as references."""


class _SharedPool(IntakePool):
    async def close(self) -> None:
        """Leave the processes to whoever shares them."""


@contextmanager
def shared_pool() -> Iterator[IntakePool]:
    """Yield a pool of processes that outlive the applications that use them."""
    pool = _SharedPool()
    yield pool
    asyncio.run(IntakePool.close(pool))

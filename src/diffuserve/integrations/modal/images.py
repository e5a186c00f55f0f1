"""An engine as an app of Modal uses it: loaded, woken after a snapshot, and asked for images."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from diffuserve.domain.errors import DiffuserveError
from diffuserve.engine_process.warm_up import warm_up
from diffuserve.integrations.engine import InProcessEngine, settings_of
from diffuserve.integrations.outputs import check_draws_images, drawn


class ModalImages:
    """An engine in a container of Modal. Inputs that run at the same time share its steps.

    Values and results are plain, and errors are Python's own, so that callers need no package of ours.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Load the model, and draw a first image: what a snapshot is to hold. Nothing is connected.

        `settings` are diffuserve's by their names. Raise what `InProcessEngine.open` raises, and
        `InvalidModel` for a model of clips or sounds.
        """
        self._host = InProcessEngine.open(settings_of(settings))
        check_draws_images(self._host.engine.spec)
        self.wake()

    def wake(self) -> None:
        """Draw an image of one step: the log tells at once if a restored GPU does not."""
        warm_up(self._host.engine, self._host.output)

    async def draw(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the image files of a request, their seeds and warnings.

        Raise `ValueError` for a request that is refused, and `RuntimeError` for one that failed.
        """
        try:
            images = await drawn(self._host, values)
        except DiffuserveError as error:
            raise _plain(error) from None
        files = await asyncio.to_thread(images.files)
        return {"images": files, "seeds": images.seeds, "warnings": list(images.result.warnings)}

    def draw_all(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the results in order; in place of one that was refused or failed, its `error`."""

        async def one(values: Mapping[str, Any]) -> dict[str, Any]:
            try:
                return await self.draw(values)
            except (ValueError, RuntimeError) as error:
                return {"error": str(error)}

        async def all_of_them() -> list[dict[str, Any]]:
            return await asyncio.gather(*map(one, requests))

        return asyncio.run(all_of_them())

    def close(self) -> None:
        """End the engine; unfinished requests fail."""
        asyncio.run(self._host.close())


def _plain(error: DiffuserveError) -> Exception:
    is_refusal = 400 <= (error.status or 500) < 500
    return ValueError(str(error)) if is_refusal else RuntimeError(str(error))

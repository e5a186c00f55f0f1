"""An engine in another server's process: requests that come together share its steps."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.errors import BacklogFull, ImageBlocked, InvalidParams
from diffuserve.domain.models.description import in_a_line
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import JUDGED
from diffuserve.domain.safety import Action
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.media.input_image import as_image
from diffuserve.models.machine.torch_environment import prepare_torch
from diffuserve.settings import Settings
from diffuserve.wiring.safety import open_prompt_filter

if TYPE_CHECKING:
    from diffuserve.domain.requests.params import GenerationParams
    from diffuserve.engine.engine import Engine
    from diffuserve.engine.outputs import GenerationResult
    from diffuserve.engine_process.output.image_output import ImageOutput

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 256
"""Requests that an engine takes at once, those that wait included; it refuses others."""


@dataclass
class InProcessEngine:
    """An engine with the filters of its settings; `max_requests` may be unfinished at once.

    It belongs to the event loop that draws with it.
    """

    engine: "Engine"
    output: "ImageOutput"
    prompts: PromptProcessor
    max_requests: int = MAX_REQUESTS
    num_requests: int = 0

    @classmethod
    def open(cls, settings: Settings) -> "InProcessEngine":
        """Load the model, from the hub or a model store if need be, and the filters.

        Raise what `Engine.load` raises, and `InvalidParams` for a filter that is unknown or not installed.
        """
        prepare_torch()
        from diffuserve.engine_process.model.lone_engine import lone_engine
        from diffuserve.engine_process.model.stored_model import with_stored_model
        from diffuserve.engine_process.output.image_output import open_image_output

        prompts = PromptProcessor(open_prompt_filter(settings))
        config = with_stored_model(settings.engine_process)
        output = open_image_output(config.model, config.images)
        engine = lone_engine(config)
        log.info("%s", in_a_line(engine.describe()))
        if prompts.filter_info is None:
            log.warning("NO PROMPT FILTER: no prompt is checked")
        if output.image_filter is None:
            log.warning("NO IMAGE FILTER: every image that this engine generates is returned unchecked")
        return cls(engine, output.of(engine.pipeline), prompts)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the places of requests, before anything of a request is read. Raise `BacklogFull`."""
        if self.num_requests >= self.max_requests:
            raise BacklogFull(f"{self.max_requests:,} requests are unfinished here; try again later")
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    async def draw(self, params: "GenerationParams") -> "GenerationResult":
        """Return the images of a request, as the filters allow them; canceling the task aborts it.

        Raise what `Engine.submit` raises, `PromptBlocked`, `ImageBlocked` and `OutputBlocked`.
        """
        for text in filter(None, (getattr(params, name) for name in JUDGED)):
            await self.prompts.moderate(text)
        await asyncio.to_thread(self._judge_inputs, params)
        result = await self.engine.submit(params)
        return await asyncio.to_thread(self.output.screened, result)

    def _judge_inputs(self, params: "GenerationParams") -> None:
        for field, image in params.input_images:
            assert isinstance(image, InputImage), "names of images would be paths on this machine"
            verdict = self.output.judge([as_image(image)]).verdict
            if verdict.action is Action.BLOCK:
                raise ImageBlocked(field, verdict.category)

    async def close(self) -> None:
        """Stop the engine; unfinished requests fail with `EngineClosed`."""
        await asyncio.to_thread(self.engine.close)
        await self.prompts.close()


def settings_of(texts: Mapping[str, Any], **given: Any) -> Settings:
    """Return the settings that another server's configuration holds as texts, by their names, JSON in JSON.

    Those `given` count where no text does; all others come from the environment. Raise `InvalidParams`.
    """
    unknown = next((name for name in texts if name not in Settings.model_fields), None)
    if unknown is not None:
        remedy = f"is no setting of diffuserve{did_you_mean(unknown, Settings.model_fields)}"
        raise InvalidParams(unknown, texts[unknown], remedy)
    return Settings.with_options(**{**given, **{name: _parsed(text) for name, text in texts.items()}})


def _parsed(text: Any) -> Any:
    """Return an object or a list that a text holds as JSON, and any other value as it is."""
    if not isinstance(text, str) or not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the setting's own check names it

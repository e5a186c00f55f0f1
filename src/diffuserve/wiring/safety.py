"""Assembly of the filters and the prompt expander that the settings name."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.prompts.base import PromptExpander
from diffuserve.safety.base import NO_IMAGE_FILTER, ImageFilter, PromptFilter, TextClassifier
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.safety.policies.policy import Policy

log = logging.getLogger(__name__)

NO_FILTER = "none"
_ONNX = "onnx:"
_BUILT_IN = ("embedded", "policy")
_URLS = ("http://", "https://")


@asynccontextmanager
async def open_prompts(settings: Settings) -> AsyncIterator[PromptProcessor]:
    """Yield the processor of prompts. Raise `InvalidParams` or `InvalidModel`."""
    prompt_filter = open_prompt_filter(settings, settings.prompt_filter_processes)
    processor = PromptProcessor(prompt_filter, open_expander(settings))
    if processor.filter_info is None:
        log.warning("NO PROMPT FILTER: no prompt is checked")
    else:
        log.info("prompt filter: %s", processor.filter_info)
    try:
        yield processor
    finally:
        await processor.close()


def open_prompt_filter(settings: Settings, num_processes: int = 0) -> PromptFilter | None:
    """Return the prompt filter, which judges in so many other processes; `None` for none.

    Raise `InvalidParams` or `InvalidModel`.
    """
    check_prompt_filter(settings)
    if settings.prompt_filter == NO_FILTER:
        return None
    from diffuserve.safety.policies.policy_file import load_policy
    from diffuserve.safety.processes.pooled import PooledFilter
    from diffuserve.safety.prompt import PolicyFilter

    is_open = settings.prompt_filter_down == "fail_open"
    policy = load_policy(settings.prompt_policy)
    classifier = _classifier(settings, policy)
    if not num_processes:
        return PolicyFilter(policy, classifier, is_open_when_down=is_open)
    return PooledFilter(
        policy,
        classifier,
        is_open_when_down=is_open,
        num_processes=num_processes,
        logs=settings.logs,
    )


def check_prompt_filter(settings: Settings) -> None:
    """Check the parts of a prompt filter's configuration that need no loading: name, folder, policy.

    Raise `InvalidParams` or `InvalidModel`.
    """
    name, policy = settings.prompt_filter, settings.prompt_policy
    if name == NO_FILTER:
        return
    if policy is not None and not policy.is_file():
        raise InvalidParams("prompt_policy", str(policy), "is no file; give one, or leave it out")
    if name.startswith(_ONNX):
        from diffuserve.safety.classifiers.onnx_text import check_text_classifier

        check_text_classifier(Path(name.removeprefix(_ONNX)).expanduser())
    elif name not in _BUILT_IN and not name.startswith(_URLS):
        remedy = "must be embedded, policy, onnx:/folder, the URL of a moderation API, or none"
        raise InvalidParams("prompt_filter", name, f"{remedy}{did_you_mean(name, (*_BUILT_IN, NO_FILTER))}")


def _classifier(settings: Settings, policy: "Policy") -> TextClassifier | None:
    """Return the classifier beside the policy's rules; each kind imports only what it needs itself."""
    name = settings.prompt_filter
    if name == "policy":
        return None
    if name == "embedded":
        from diffuserve.safety.classifiers.embedded import EmbeddedClassifier

        return EmbeddedClassifier.load()
    if name.startswith(_ONNX):
        from diffuserve.safety.classifiers.onnx_text import OnnxTextClassifier

        onnx = OnnxTextClassifier(Path(name.removeprefix(_ONNX)).expanduser())
        if ignored := onnx.categories - policy.categories.keys():
            names = ", ".join(sorted(ignored))
            log.warning("scores for %s have no effect: the policy lacks these categories", names)
        return onnx
    from diffuserve.safety.moderation_api.client import ModerationClassifier

    seconds = settings.prompt_filter_timeout_seconds
    return ModerationClassifier(name, key=settings.prompt_filter_key, timeout_seconds=seconds)


def open_expander(settings: Settings) -> PromptExpander | None:
    """Return the prompt expander; `None` without a chat API. Raise `InvalidParams`."""
    if settings.expander_url is None:
        return None
    from diffuserve.prompts.cache import CachedExpander
    from diffuserve.prompts.chat import DEFAULT_SYSTEM_PROMPT, ChatConfig, ChatExpander

    config = ChatConfig(
        url=settings.expander_url,
        model=settings.expander_model,
        key=settings.expander_key,
        timeout_seconds=settings.expander_timeout_seconds,
        system_prompt=settings.expander_system_prompt or DEFAULT_SYSTEM_PROMPT,
    )
    return CachedExpander(ChatExpander(config))


def choose_image_filter(settings: Settings) -> ImageFilter | None:
    """Return the image filter; `None` for none. Raise `InvalidParams`."""
    from diffuserve.safety.image_filters import open_image_filter

    images = settings.engine_process.images
    return open_image_filter(images.image_filter, images.image_rules)


@asynccontextmanager
async def open_intake(settings: Settings) -> AsyncIterator[IntakePool]:
    """Yield what reads and judges the images that requests bring, by the workers' image filter.

    Raise `InvalidParams` for a filter of no known name. One that is not installed here lets the server start,
    which then refuses images, since nothing would judge them.
    """
    from diffuserve.safety.image_filters import check_image_filter_name, open_image_filter

    images = settings.engine_process.images
    if check_image_filter_name(images.image_filter) == NO_IMAGE_FILTER:
        log.warning("NO IMAGE FILTER: no image that a request brings is checked")
    opener = partial(open_image_filter, images.image_filter, images.image_rules)
    num_processes, objection = settings.image_intake_processes, _objection_to_images(settings)
    pool = IntakePool(opener, num_processes, settings.logs, objection=objection)
    try:
        yield pool
    finally:
        await pool.close()


def _objection_to_images(settings: Settings) -> str:
    """Return why no image can be judged, "" if images can be, or need not."""
    from diffuserve.safety.image_filters import check_image_filter

    images = settings.engine_process.images
    try:
        check_image_filter(images.image_filter, images.image_rules)
    except InvalidParams as error:
        log.warning("requests cannot bring images, since none would be judged: %s", error)
        return str(error)
    return ""

"""Forms of webhook messages beside this server's own, for programs that were written for another server."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diffuserve.domain.jobs.job import Job

MessageForm = Callable[[Job, str], Awaitable[Mapping[str, Any]]]
"""Builds the message about the end of a job, whose URLs begin with a base."""


@dataclass(frozen=True)
class MessageForms:
    """The forms by the names that webhooks have them by."""

    by_name: Mapping[str, MessageForm]

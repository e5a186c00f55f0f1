"""Events of jobs as they are streamed, each encoded once for all that follow its job."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import orjson
from sse_starlette import ServerSentEvent

from diffuserve.api.resources.serializers import event_resource, live_event_resource
from diffuserve.domain.jobs.job import JobEvent
from diffuserve.domain.resources.job import EventResource


class StreamedEvent:
    """An event of a job. It is the same for every reader: it has no URL and nothing about the caller."""

    def __init__(self, resource: EventResource) -> None:
        self.resource = resource

    @classmethod
    def stored(cls, event: JobEvent) -> "StreamedEvent":
        """Return an entry of a job's log as an event."""
        return cls(event_resource(event))

    @classmethod
    def live(cls, job_id: str, message: Mapping[str, Any]) -> "StreamedEvent":
        """Return a message of the bus as an event, which has no `seq`."""
        return cls(live_event_resource(job_id, message))

    @cached_property
    def text(self) -> str:
        """The event as JSON, for a WebSocket."""
        return orjson.dumps(self.resource).decode()

    @cached_property
    def server_sent(self) -> bytes:
        """The event in the format of server-sent events; its id is that of the log entry."""
        seq = self.resource.seq
        event = ServerSentEvent(
            self.text, event=self.resource.type, id=None if seq is None else str(seq), sep="\n"
        )
        return event.encode()

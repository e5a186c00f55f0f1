"""Metadata services as the clouds' documents describe them, for machines that are about to be taken away."""

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.http_request import ReceivedRequest
from support.scripted_server import Reply, ScriptedServer

_TEXT = {"content-type": "text/plain"}
NOT_FOUND = Reply(b"<?xml version='1.0'?><html>404 - Not Found</html>", status=404, headers=_TEXT)
OVERLOADED = Reply(b"", status=503, headers=_TEXT)


@dataclass
class MetadataServer(ScriptedServer):
    """Responds as a metadata service does; what is in `script` goes first, for faults."""

    def reply_to(self, request: ReceivedRequest) -> Reply | None:
        return self.script.popleft() if self.script else self.respond(request)

    def respond(self, request: ReceivedRequest) -> Reply:
        """Return the response of a service that is well."""
        raise NotImplementedError

    def requests_to(self, path: str) -> list[ReceivedRequest]:
        """Return the requests to a path, whatever their query."""
        return [request for request in self.requests if urlsplit(request.path).path == path]


@dataclass
class AwsMetadata(MetadataServer):
    """IMDSv2: `tokens` are those that it has given; those in `expired` are refused."""

    life_cycle: str = "spot"
    action: dict[str, str] | None = None
    rebalance: dict[str, str] | None = None
    tokens: list[str] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)

    def respond(self, request: ReceivedRequest) -> Reply:
        if request.path == "/latest/api/token":
            return self._token(request)
        token = request.headers.get("x-aws-ec2-metadata-token")
        if token not in self.tokens or token in self.expired:
            return Reply(b"", status=401, headers=_TEXT)
        match request.path.removeprefix("/latest/meta-data/"):
            case "instance-life-cycle":
                return Reply(self.life_cycle.encode(), headers=_TEXT)
            case "spot/instance-action":
                return NOT_FOUND if self.action is None else Reply(self.action)
            case "events/recommendations/rebalance":
                return NOT_FOUND if self.rebalance is None else Reply(self.rebalance)
        return NOT_FOUND

    def interrupt(self) -> None:
        """Announce the end of the machine."""
        self.action = {"action": "terminate", "time": "2026-11-23T08:22:00Z"}

    def expire_tokens(self) -> None:
        """Refuse the tokens that were given so far."""
        self.expired |= set(self.tokens)

    def _token(self, request: ReceivedRequest) -> Reply:
        if request.method != "PUT" or "x-aws-ec2-metadata-token-ttl-seconds" not in request.headers:
            return Reply(b"", status=405, headers=_TEXT)
        self.tokens.append(f"AQAEA-{len(self.tokens)}=")
        return Reply(self.tokens[-1].encode(), headers=_TEXT)


@dataclass
class GcpMetadata(MetadataServer):
    """The metadata server of Compute Engine. It responds to waits at once, as it may."""

    preemptible: str = "TRUE"
    preempted: str = "FALSE"

    def respond(self, request: ReceivedRequest) -> Reply:
        if request.headers.get("metadata-flavor") != "Google":
            return Reply(b"Missing Metadata-Flavor:Google header", status=403, headers=_TEXT)
        match urlsplit(request.path).path.removeprefix("/computeMetadata/v1/instance/"):
            case "scheduling/preemptible":
                return self._value(self.preemptible)
            case "preempted":
                return self._value(self.preempted)
        return NOT_FOUND

    def interrupt(self) -> None:
        """Announce the end of the machine."""
        self.preempted = "TRUE"

    def _value(self, text: str) -> Reply:
        headers = {**_TEXT, "metadata-flavor": "Google", "etag": f"etag-of-{text}"}
        return Reply(text.encode(), headers=headers)


@dataclass
class AzureMetadata(MetadataServer):
    """Instance metadata and scheduled events of Azure; `started` are the events that were acknowledged."""

    name: str = "painter_3"
    priority: str = "Spot"
    events: list[dict[str, Any]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def respond(self, request: ReceivedRequest) -> Reply:
        url = urlsplit(request.path)
        if request.headers.get("metadata") != "true" or "api-version" not in parse_qs(url.query):
            return Reply({"error": "Bad request"}, status=400)
        match request.method, url.path:
            case "GET", "/metadata/instance/compute":
                return Reply({"name": self.name, "priority": self.priority, "location": "westeurope"})
            case "GET", "/metadata/scheduledevents":
                return Reply({"DocumentIncarnation": 1, "Events": self.events})
            case "POST", "/metadata/scheduledevents":
                wanted = json.loads(request.body)["StartRequests"]
                self.started += [start["EventId"] for start in wanted]
                return Reply(b"", headers=_TEXT)
        return NOT_FOUND

    def interrupt(self, *names: str, kind: str = "Preempt") -> None:
        """Announce an event of these machines, by default of this one."""
        self.events.append(
            {
                "EventId": f"event-{len(self.events)}",
                "EventStatus": "Scheduled",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(names or (self.name,)),
                "NotBefore": "Mon, 23 Nov 2026 08:22:00 GMT",
            }
        )

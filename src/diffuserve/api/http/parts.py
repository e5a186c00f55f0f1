"""Parts of the application that routes use: each route says by types which, and receives no others."""

from typing import Generic, Protocol, TypeVar

from starlette.requests import HTTPConnection

Part = TypeVar("Part")


class _Whole(Protocol):
    """The whole of an application, as its state holds it."""

    def part(self, kind: type[Part]) -> Part:
        """Return the part of this type."""


class Uses(Generic[Part]):
    """Dependency that gives a route a part of the application, or a dataclass whose fields are such parts."""

    def __init__(self, kind: type[Part]) -> None:
        self.kind = kind

    async def __call__(self, connection: HTTPConnection) -> Part:
        return part_of(connection, self.kind)


def part_of(connection: HTTPConnection, kind: type[Part]) -> Part:
    """Return a part of the application that serves this connection."""
    whole: _Whole = connection.app.state.services
    return whole.part(kind)

"""The places that pieces of a model come from."""

from typing import Protocol

from diffuserve.modelstore.manifest import Manifest, ModelFile


class PieceSource(Protocol):
    """A place that may have pieces of a model; its content is verified. Safe from any thread."""

    @property
    def place(self) -> str:
        """Return its location, for messages."""
        ...

    def read(self, manifest: Manifest, file: ModelFile, part: range) -> bytes | memoryview:
        """Return a part of a file, which begins and ends where pieces do.

        Raise `DiffuserveError` if it cannot: the next source is asked.
        """
        ...

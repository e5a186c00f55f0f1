"""What is known of an adapter that has a name."""

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from diffuserve.domain.bounds import Amount, WholeAmount
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.text.path_parts import FileName, Sha256

MAX_ADAPTER_BYTES: Final = 8 * 2**30
"""Thirty times what an adapter of rank 16 for every layer of a large model has."""
Text = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, kw_only=True)
class AdapterEntry:
    """An adapter that has a name: everyone's, or the `tenant`'s alone.

    `digest` is the SHA-256 of its file. `families` are those of the models whose layers the file names;
    `model` is the one that it was checked against, if any. `rank` is its largest. `created_at` is in seconds
    since the epoch.
    """

    name: FileName
    tenant: Text | None = None
    digest: Sha256
    num_bytes: WholeAmount
    families: Annotated[tuple[Text, ...], Field(min_length=1, max_length=20)]
    model: Text | None = None
    rank: WholeAmount
    num_layers: WholeAmount
    created_at: Amount

    def fits(self, spec: ModelSpec) -> bool:
        """Return whether a model may take it: one of its families, or one whose library will tell.

        The worker that loads it compares the shapes of the layers too.
        """
        return bool(spec.max_adapters) and (bool(spec.run_by) or spec.family in self.families)

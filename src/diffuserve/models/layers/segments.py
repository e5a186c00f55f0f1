"""Packed rows: tokens of many sequences in one row, without padding between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffuserve.models.machine.devices import to_device

# Keys that are padded are padded to a multiple of this, so that neighbors with prompts of about the same
# length share one call.
_PADDED_KEYS = 32


@dataclass(frozen=True)
class Segments:
    """The sequences of a packed row: their lengths, and their cumulative lengths from 0.

    `cu_seqlens` is named and typed (int32) as FlashAttention's varlen kernels want it.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Int[Tensor, "sequences_plus_one"]

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> "Segments":
        """Build the segments of sequences with these lengths, in tokens."""
        cu_seqlens = torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return cls(lengths, to_device(cu_seqlens, device))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield neighboring sequences of equal length, as (first token, number of sequences, length)."""
        start = 0
        for length, run in groupby(self.lengths):
            count = len(list(run))
            yield start, count, length
            start += count * length

    def views(self, row: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield neighboring sequences of equal length: which they are, and a view of their tokens in `row`.

        The view has the shape (sequences, tokens of each, …).
        """
        first = 0
        for start, count, length in self.runs():
            if length:
                yield (
                    slice(first, first + count),
                    row[start : start + count * length].unflatten(0, (count, length)),
                )
            first += count

    def part(self, start: int, stop: int) -> tuple[int, ...]:
        """Return how many tokens of each sequence stand at `start`…`stop - 1` in the row."""
        ends = list(accumulate(self.lengths))
        spans = zip((0, *ends), ends, strict=False)
        return tuple(max(0, min(stop, end) - max(start, first)) for first, end in spans)


@dataclass(frozen=True)
class PaddedRun:
    """Neighboring sequences with equally many queries, and keys that are padded to equal numbers.

    `keys` are places in the row of keys. `bias` is added to the scores of the keys; `None` is 0.
    """

    start: int
    length: int
    keys: Int[Tensor, "count keys"]
    bias: Float[Tensor, "count keys"] | None

    @property
    def count(self) -> int:
        return self.keys.shape[0]


@dataclass(frozen=True)
class CrossSegments:
    """Sequences whose queries and keys stand in rows of their own.

    Models that were trained on padded prompts attend to the padding too. It is a single key, which stands
    once, after the other keys of each sequence that has any; the sequence attends to it as often as it was
    padded. `places` are all keys of all sequences, repeated so. In `runs` padding stands less often: `m`
    equal keys weigh as much as `p` of them with log(m / p) added to their scores, since
    m·exp(s) = p·exp(s + log(m / p)).
    """

    queries: Segments
    keys: Segments
    places: Int[Tensor, "keys"]
    runs: tuple[PaddedRun, ...]

    @classmethod
    def of(
        cls, queries: Sequence[int], keys: Sequence[int], padding: Sequence[int], device: torch.device
    ) -> "CrossSegments":
        """Build the segments of sequences with these numbers of queries, of keys and of padding after them.

        A sequence may have no queries, where its keys stand in the row all the same.
        """
        starts = (0, *accumulate(count + min(1, pads) for count, pads in zip(keys, padding, strict=True)))
        places = [
            torch.tensor([*range(start, start + count), *[start + count] * pads])
            for start, count, pads in zip(starts, keys, padding, strict=False)
        ]
        lengths = tuple(count + pads for count, pads in zip(keys, padding, strict=True))
        return cls(
            queries=Segments.of(tuple(queries), device),
            keys=Segments.of(lengths, device),
            places=to_device(torch.cat(places), device),
            runs=tuple(_runs(queries, keys, padding, places, device)),
        )


@dataclass(frozen=True)
class CausalSegments:
    """Sequences whose tokens attend to themselves and to those before, but never to padding.

    Padding is a token that attends, too: after a sequence's own tokens to all of them, before them to
    nothing. `own` are the sequences without padding, and `own_at` the places of their tokens in the row;
    `None` if there is no padding. `after` attends from the padding at `after_at` to the tokens of `own`.
    """

    own: Segments
    own_at: Int[Tensor, "own"] | None = None
    after: CrossSegments | None = None
    after_at: Int[Tensor, "after"] | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "CausalSegments":
        """Build the segments of sequences with these lengths, in tokens, without padding."""
        return cls(Segments.of(tuple(lengths), device))

    @classmethod
    def padded(cls, mask: Bool[Tensor, "sequences length"], device: torch.device) -> "CausalSegments":
        """Build the segments of sequences of one length, with their own tokens together where `mask` is true.

        Raise `ValueError` for a sequence without tokens of its own.
        """
        counts = mask.sum(dim=1)
        if not bool((counts > 0).all()):
            raise ValueError("each sequence needs a token that is no padding")
        after = (mask.cumsum(dim=1) == counts[:, None]) & ~mask
        own = tuple(counts.tolist())
        cross = CrossSegments.of(after.sum(dim=1).tolist(), own, [0] * len(own), device)
        own_at, after_at = (to_device(each.flatten().nonzero().squeeze(1), device) for each in (mask, after))
        return cls(Segments.of(own, device), own_at, cross, after_at)


def _runs(
    queries: Sequence[int],
    keys: Sequence[int],
    padding: Sequence[int],
    places: Sequence[Tensor],
    device: torch.device,
) -> Iterator[PaddedRun]:
    start = 0
    padded = [_padded_keys(count, pads) for count, pads in zip(keys, padding, strict=True)]
    alike = zip(queries, padded, (bool(pads) for pads in padding), strict=True)
    for (length, width, is_padded), group in groupby(range(len(queries)), key=list(alike).__getitem__):
        run = list(group)
        if length:
            yield PaddedRun(
                start=start,
                length=length,
                keys=to_device(torch.stack([places[index][:width] for index in run]), device),
                bias=to_device(
                    torch.stack([_bias(keys[index], padding[index], width) for index in run]), device
                )
                if is_padded
                else None,
            )
        start += len(run) * length


def _padded_keys(count: int, pads: int) -> int:
    """Return how many keys a run has for a sequence: at least one of its padding, if there is any."""
    wanted = -(-(count + 1) // _PADDED_KEYS) * _PADDED_KEYS
    return count + min(wanted - count, pads)


def _bias(count: int, pads: int, width: int) -> Float[Tensor, "keys"]:
    bias = torch.zeros(width)
    bias[count:] = torch.tensor(pads / (width - count)).log()
    return bias

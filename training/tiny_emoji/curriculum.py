"""The curriculum shows the denoiser few things at first, then all, larger and in twos."""

from dataclasses import dataclass

from pictures import Range


@dataclass(frozen=True)
class Phase:
    """Pictures of these widths and heights, from a step on."""

    first_step: int
    drawn: Range
    sizes: tuple[tuple[int, int], ...]


_SMALL, _NATIVE = (96, 96), (128, 128)
_OTHERS = ((160, 96), (96, 160), (192, 192))


def curriculum(num_things: int) -> tuple[Phase, ...]:
    """Return the phases in order."""

    def drawn(most: int, pair_share: float) -> Range:
        return Range(min(most, num_things), pair_share)

    return (
        Phase(0, drawn(100, 0.15), (_SMALL,)),
        Phase(6_000, drawn(250, 0.25), (_SMALL,)),
        Phase(15_000, drawn(num_things, 0.3), (_SMALL, _NATIVE)),
        Phase(60_000, drawn(num_things, 0.4), (_SMALL, _NATIVE, _NATIVE, *_OTHERS)),
    )


def phase_at(step: int, num_things: int) -> Phase:
    """Return the phase of a step."""
    return max(
        (phase for phase in curriculum(num_things) if phase.first_step <= step),
        key=lambda phase: phase.first_step,
    )
